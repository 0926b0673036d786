"""A small tree search: each node is a fork, its value what the model says of it."""

import math

from inferlet import Context, Model, Sampler, runtime


class Node:
    def __init__(self, ctx, parent=None):
        self.ctx, self.parent = ctx, parent
        self.children, self.visits, self.value = [], 0, 0.0

    def score(self) -> float:
        if not self.visits:
            return math.inf
        return self.value / self.visits + 1.4 * math.sqrt(math.log(self.parent.visits) / self.visits)


async def main(input: dict) -> dict:
    root = Node(Context(Model.load(runtime.models()[0])).user("How does a boat stay dry?"))
    for _ in range(int(input.get("rounds", 3))):
        node = root
        while node.children:
            node = max(node.children, key=Node.score)
        for _ in range(2):
            child = node.ctx.fork()
            await child.generate(Sampler.top_k(0.8, 20), max_tokens=4).collect_tokens()
            node.children.append(Node(child.seal().user("Go on."), node))
        leaf = node.children[0]
        judged = leaf.ctx.fork().user("Rate it from 0 to 9.")
        text = await judged.generate(Sampler.argmax(), max_tokens=2).collect_text()
        reward = len(text) / 10
        while leaf is not None:
            leaf.visits, leaf.value, leaf = leaf.visits + 1, leaf.value + reward, leaf.parent
    return {"visits": root.visits, "children": len(root.children)}
