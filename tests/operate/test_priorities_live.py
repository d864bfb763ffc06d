"""The recipe for urgent requests beside bulk traffic: a second model that does not wait for the first one's queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BULK, URGENT = 12, 25


async def times_ms(url: str, bulk: str, urgent: str) -> list[tuple[float, float]]:
    """Milliseconds of two urgent requests, asked at once while bulk requests are asked without pause: one of the bulk
    model, one of the model for urgent ones. Whatever else the machine does hits both."""
    from perf.client import Client

    x = np.ones((1, 4), np.float32)
    async with Client(url, bulk) as mass, Client(url, urgent) as few:
        done = False

        async def ask(client: Client) -> float:
            begun = time.perf_counter()
            await client.infer({"x": x})
            return (time.perf_counter() - begun) * 1e3

        async def crowd() -> None:
            while not done:
                await ask(mass)

        crowds = [asyncio.create_task(crowd()) for _ in range(BULK)]
        await asyncio.sleep(0.5)
        seen = [tuple(await asyncio.gather(ask(mass), ask(few))) for _ in range(URGENT)]
        done = True
        await asyncio.gather(*crowds)
    return seen


@pytest.mark.live
@pytest.mark.long
def test_a_second_model_keeps_urgent_requests_out_of_the_bulk_queue(
    tmp_path: Path, scripted: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    """Bulk batches of four take 40 ms, and twelve clients keep two of them waiting."""
    repository = tmp_path / "models"
    bulk = scripted(repository, work="time.sleep(0.04)")
    (bulk / "config.pbtxt").write_text((bulk / "config.pbtxt").read_text().replace("size: 8", "size: 4"))
    urgent = repository / "scale-urgent"
    urgent.mkdir()
    (urgent / "1").symlink_to(bulk / "1")
    text = (bulk / "config.pbtxt").read_text()
    (urgent / "config.pbtxt").write_text(text)
    edited = run_cli("gen-config", urgent, "--no-dynamic-batching", "--instances", 1)
    assert edited.code == 0, edited.err
    assert "dynamic_batching" not in (urgent / "config.pbtxt").read_text()
    checked = run_cli("check", repository, "--json")
    assert checked.code == 0, checked.out
    with serving(repository, "scale", "scale-urgent") as server:
        seen = asyncio.run(times_ms(server.grpc_url, "scale", "scale-urgent"))
    shared, apart = (np.array(side) for side in zip(*seen, strict=True))
    assert (apart < shared).mean() > 0.9, seen
    assert np.median(apart) < 0.75 * np.median(shared), "the shared queue holds batches that were there before"
    assert np.percentile(apart, 99) < np.percentile(shared, 99), seen


def test_priority_levels_are_flagged_for_their_stalls(
    tmp_path: Path, scaled: Callable[..., Path], run_cli: Any
) -> None:
    model = scaled(tmp_path / "models")
    text = (model / "config.pbtxt").read_text()
    (model / "config.pbtxt").write_text(
        text.replace("dynamic_batching {}", "dynamic_batching { priority_levels: 2 default_priority_level: 2 }")
    )
    done = run_cli("check", model.parent, "--fail-on", "warning", "--json")
    assert done.code == 1
    assert "queue-policy-stalls" in {finding["rule"] for finding in done.json["data"]["findings"]}
