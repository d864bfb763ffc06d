"""How many requests a second the simulator plays on one core, with SimPy and Ciw beside it.

    python benchmarks/sim_speed.py [--requests N] [--runs N]

Counted is the CPU time of laying out the memory, the kernel and the statistics, best of the runs; numba's kernel is
compiled before. SimPy and Ciw (`pip install simpy ciw`) play M/M/1, the simplest queue there is, so the simulator
plays it too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from perf.sim import Arrivals, BatcherConfig, QueuePolicy, ServiceModel, Stage, run

MM1 = Stage(BatcherConfig(1), ServiceModel.linear(1, spread=(0.2, 0.5, 1.0, 2.3)))
LAW = ServiceModel.linear(4, 0.5)


def cases(count: int) -> dict[str, tuple[Stage, Arrivals]]:
    """The plain configs first: batches up to 8, no delay."""
    poisson = Arrivals.poisson(800, count)
    return {
        "batch ≤ 8, 32 clients": (Stage(BatcherConfig(8), LAW), Arrivals.closed(32, count)),
        "batch ≤ 8, poisson": (Stage(BatcherConfig(8), LAW), poisson),
        "delay 2ms, 2 instances": (Stage(BatcherConfig(8, max_queue_delay_us=2_000, instance_count=2), LAW), poisson),
        "the same, two lengths": (
            Stage(BatcherConfig(8, max_queue_delay_us=2_000, instance_count=2, shape_checked=True), LAW),
            Arrivals.poisson(400, count, lengths=(8, 16)),
        ),
        "a queue policy": (
            Stage(BatcherConfig(8, default_queue_policy=QueuePolicy(max_queue_size=100)), LAW),
            poisson,
        ),
        "M/M/1": (MM1, poisson),
    }


def simpy_mm1(count: int) -> None:
    import random

    import simpy

    env = simpy.Environment()
    server = simpy.Resource(env, capacity=1)
    draw = random.Random(0)
    latencies = []

    def request() -> simpy.events.ProcessGenerator:
        sent = env.now
        with server.request() as turn:
            yield turn
            yield env.timeout(draw.expovariate(1.0))
        latencies.append(env.now - sent)

    def source() -> simpy.events.ProcessGenerator:
        for _ in range(count):
            yield env.timeout(draw.expovariate(0.8))
            env.process(request())

    env.process(source())
    env.run()
    assert len(latencies) == count


def ciw_mm1(count: int) -> None:
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=0.8)],
        service_distributions=[ciw.dists.Exponential(rate=1.0)],
        number_of_servers=[1],
    )
    ciw.seed(0)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(count, method="Finish")
    assert len(simulation.get_all_records()) >= count


def report(name: str, count: int, runs: int, play: Callable[[], object]) -> None:
    seconds = []
    for _ in range(runs):
        started = time.process_time()
        play()
        seconds.append(time.process_time() - started)
    print(f"{name:<28} {count / min(seconds):>12,.0f} requests/s  [{count / max(seconds):,.0f}]  n={runs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    started = time.perf_counter()
    run([MM1], Arrivals.poisson(800, 10), compiled=True)
    print(f"{'load or compile the kernel':<28} {time.perf_counter() - started:>12.1f} s")
    for name, (stage, arrivals) in cases(options.requests).items():
        play = lambda s=stage, a=arrivals: run([s], a, compiled=True).predict()  # noqa: E731
        report(name, options.requests, options.runs, play)
    few = options.requests // 50
    stage, arrivals = cases(few)["batch ≤ 8, poisson"]
    report("plain Python kernel", few, 1, lambda: run([stage], arrivals, compiled=False).predict())
    for name, play_mm1 in (("SimPy, M/M/1", simpy_mm1), ("Ciw, M/M/1", ciw_mm1)):
        try:
            report(name, few, 1, lambda play=play_mm1: play(few))
        except ImportError as missing:
            print(f"{name:<28} not installed ({missing.name})")


if __name__ == "__main__":
    main()
