"""Keeps a value for the runs that come later, and counts them with it."""

from inferlet import runtime


async def main(input: dict) -> dict:
    space = input.get("space", "counts")
    before = runtime.metadata_get(space, "runs")
    count = int((before or b"0").decode()) + 1
    runtime.metadata_put(space, "runs", str(count).encode())
    if count > 1:
        return {"count": count, "deleted": [runtime.metadata_delete(space, "runs") for _ in range(2)]}
    return {"count": count, "before": before}
