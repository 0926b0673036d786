# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "agent"
# version = "0.1.0"
# ///
"""An agent with tools: the model calls functions of this program, reads what they return, and answers."""

import ast
import operator
from dataclasses import dataclass

import inferd
from inferd import Context, LimitExceeded
from inferd.chat import TextDelta, ToolCall
from inferd.tools import ToolAnswer, ToolResult

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
MAX_EXPRESSION = 200
"""Characters: what is longer may be too deep for a parser."""


@dataclass
class Done:
    """The answer, and each call with what it brought."""

    answer: str
    calls: list[str]
    rounds: int


@inferd.tool
def calculate(expression: str) -> float:
    """Work out an arithmetic expression.

    Args:
        expression: numbers, + - * / and parentheses, such as (17 + 3) * 2
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError("the expression is too long")
    return value_of(ast.parse(expression.strip(), mode="eval").body)


def value_of(node: ast.AST) -> float:
    """Return the value of an expression that is arithmetic and nothing else."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return float(OPERATORS[type(sign)](value_of(left), value_of(right)))
        case ast.UnaryOp(sign, operand) if type(sign) in OPERATORS:
            return float(OPERATORS[type(sign)](value_of(operand)))
    raise ValueError("only numbers, + - * / and parentheses can be worked out")


@inferd.tool
def count_letter(word: str, letter: str) -> int:
    """Count how often a letter is in a word."""
    return word.lower().count(letter.lower())


async def main(
    task: str = "How much is 17 * 23?", tool_choice: str = "auto", max_rounds: int = 6, max_tokens: int = 256
) -> Done:
    """Answer ``task``, with tools. ``tool_choice``: auto, none, required (a call comes first), or a tool's name."""
    async with Context() as ctx:
        ctx.system("You answer briefly. Use the tools where they help.").user(task)
        calls: list[str] = []
        run = ctx.run_tools(
            [calculate, count_letter], tool_choice=tool_choice, max_rounds=max_rounds, max_tokens=max_tokens
        )
        try:
            async for event in run:
                match event:
                    case TextDelta(text):
                        print(text, end="", flush=True)
                    case ToolCall():
                        print(f"\n[{event.name} {event.arguments}]", flush=True)
                    case ToolResult():
                        calls.append(f"{event.call.name} {event.call.arguments} = {event.text}")
                    case ToolAnswer():
                        print()
                        return Done(event.text, calls, event.rounds)
        except LimitExceeded as error:
            return Done(f"(ended: {error.message})", calls, max_rounds)
    raise AssertionError("a run of tools ends with an answer, or with an error")
