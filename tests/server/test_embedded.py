"""What a running server does: load, override, refuse, alias; on one server, whose repository has an awkward path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import Refused, UsageError
from tooling.server import EmbeddedServer, ServerOptions
from tooling.server.supervisor import children_of

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server(
    runtime: Any, tmp_path_factory: pytest.TempPathFactory, add_model: Callable[..., Path]
) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("awkward") / "größe 'of \"it" / "modèles"
    add_model(repository, "double")
    add_model(repository, "cut", files={"1/model.onnx": "not an ONNX file"})
    add_model(repository, "no such name")
    with EmbeddedServer(repository, runtime, ServerOptions(strict_config=True)) as running:
        yield running


@pytest.fixture
def config() -> Callable[..., Any]:
    """The configuration of `double` under a name, with other fields set."""
    from google.protobuf import text_format

    from tooling.config.proto import pb

    def build(name: str = "double", instances: int = 1, **fields: Any) -> Any:
        message = pb().ModelConfig(name=name, backend="onnxruntime", max_batch_size=4, **fields)
        text = 'input { name: "x" data_type: TYPE_FP32 dims: 2 } output { name: "y" data_type: TYPE_FP32 dims: 2 }'
        text_format.Merge(f"{text} instance_group {{ kind: KIND_CPU count: {instances} }}", message)
        return message

    return build


def stubs_of(server: EmbeddedServer) -> int:
    """Processes of the Python backend, one for each instance; those that have ended do not count."""
    lines = (Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children_of(server.pid))
    return sum(b"triton_python_backend_stub" in line for line in lines)


def reason(raised: pytest.ExceptionInfo[Refused]) -> str:
    return raised.value.problems[0].what


def test_serves_a_repository_with_blanks_quotes_and_other_letters_in_its_path(
    server: EmbeddedServer, infer: Callable[..., list[float]], settled: Callable[..., Any]
) -> None:
    server.load("double")
    before = int(server.stats("double").get("inference_count", 0))
    assert infer(server, "double", [1.5, -2.0]) == [3.0, -4.0]
    assert settled(lambda: int(server.stats("double")["inference_count"]), before + 1) == before + 1
    assert server.model_config("double")["max_batch_size"] == 4


def test_is_private_to_its_user_and_to_this_machine(server: EmbeddedServer) -> None:
    directory = server.log_path.parent
    assert directory.stat().st_mode & 0o777 == 0o700
    assert str(directory).isascii()
    for url in (server.http_url, server.grpc_url, server.metrics_url):
        assert url.startswith("127.0.0.1:")


def test_override_replaces_the_whole_configuration_and_the_old_process_is_gone(
    server: EmbeddedServer, config: Callable[..., Any], infer: Callable[..., list[float]]
) -> None:
    for instances, delay in ((2, 100), (1, 200)):
        override = config(instances=instances, dynamic_batching={"max_queue_delay_microseconds": delay})
        server.load("double", override)
        assert stubs_of(server) == instances
        assert server.model_config("double")["dynamic_batching"]["max_queue_delay_microseconds"] == delay
        assert infer(server, "double", [1, 2]) == [2, 4]


def test_alias_serves_two_configurations_of_one_model_side_by_side(
    server: EmbeddedServer, config: Callable[..., Any], infer: Callable[..., list[float]]
) -> None:
    server.load("double")
    directory = (server.log_path.parent / "models" / "double").resolve()
    server.alias("double-candidate", directory)
    server.load("double-candidate", config("double-candidate", instances=2))
    assert infer(server, "double-candidate", [3, 4]) == infer(server, "double", [3, 4]) == [6, 8]
    assert server.model_config("double-candidate")["instance_group"][0]["count"] == 2
    with pytest.raises(UsageError, match="already has a model of this name"):
        server.alias("double", directory)
    server.unload("double-candidate")
    with pytest.raises(Refused, match="'double-candidate' is not available"):
        server.stats("double-candidate")


def test_reason_of_a_refusal_while_polling_is_taken_from_the_log(
    server: EmbeddedServer, config: Callable[..., Any], infer: Callable[..., list[float]]
) -> None:
    server.load("double")
    wrong = config(dynamic_batching={"preferred_batch_size": [9]})
    with pytest.raises(Refused) as raised:
        server.load("double", wrong)
    assert reason(raised) == "dynamic batching preferred size must be <= max batch size for double"
    assert infer(server, "double", [1, 2]) == [2, 4], "the configuration before keeps serving"


def test_reason_of_a_refusal_by_the_backend_is_bare(server: EmbeddedServer, config: Callable[..., Any]) -> None:
    wrong = config()
    wrong.input[0].data_type = 9
    with pytest.raises(Refused) as raised:
        server.load("double", wrong)
    assert reason(raised) == (
        "unable to load model 'double', configuration expects datatype TYPE_INT64 for input 'x', "
        "model provides TYPE_FP32"
    )


def test_truncated_model_file_is_named_by_the_users_path(server: EmbeddedServer) -> None:
    with pytest.raises(Refused) as raised:
        server.load("cut")
    assert "Protobuf parsing failed" in reason(raised)
    assert "größe 'of \"it/modèles/cut/1/model.onnx" in reason(raised)


def test_names_that_cannot_be_served(server: EmbeddedServer) -> None:
    assert server.models() == ["cut", "double", "no such name"]
    with pytest.raises(UsageError, match="not a usable model name"):
        server.load("no such name")
    with pytest.raises(UsageError, match="no such model") as raised:
        server.load("doubel")
    assert raised.value.problems[0].hint == "did you mean `double`?"


def test_two_servers_do_not_disturb_each_other(
    server: EmbeddedServer, start: Callable[..., EmbeddedServer], repository: Path
) -> None:
    with start(repository) as other:
        assert other.run_id != server.run_id
        ports = {url for one in (server, other) for url in (one.http_url, one.grpc_url, one.metrics_url)}
        assert len(ports) == 6
    assert server.alive()
    assert server.models() == ["cut", "double", "no such name"]


@pytest.mark.live
def test_scattered_threads_may_use_the_same_cpus_as_before(
    start: Callable[..., EmbeddedServer], repository: Path, infer: Callable[..., list[float]]
) -> None:
    with start(repository) as server:
        server.load("double")
        pids = [server.pid, *children_of(server.pid)]
        assert len(pids) == 2
        pinned = max(int(task.name) for task in Path(f"/proc/{pids[1]}/task").iterdir())
        os.sched_setaffinity(pinned, {min(os.sched_getaffinity(pinned))})
        tasks = [int(task.name) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
        before = {task: os.sched_getaffinity(task) for task in tasks}
        server.scatter()
        assert {task: os.sched_getaffinity(task) for task in tasks} == before
        assert infer(server, "double", [1, 2]) == [2, 4]
