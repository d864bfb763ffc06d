"""The embedded server: a tritonserver of our own, started, loaded, watched and ended. Layer: server."""

from __future__ import annotations

import http.client
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tooling.errors import ExternalError, Refused
from tooling.server.client import Answer, TritonHttp, read_metrics
from tooling.server.flags import measuring_flags
from tooling.server.log import ServerLog, plain_reason, refusal_reason
from tooling.server.options import ServerOptions
from tooling.server.ports import Ports, choose_ports, port_taken
from tooling.server.process import SupervisedServer
from tooling.server.workspace import Workspace

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.runtime import Runtime

_T = TypeVar("_T")
_EXIT_TIMEOUT_S = 3  # for requests in flight; tritonserver waits it out whole after a load that failed in an instance
_PORT_TRIES = 5
_POLL_S = 0.02
_READY_TIMEOUT_S = 1  # short: another program on our port may accept and never answer
_CRASH_TIMEOUT_S = 5  # from a broken connection to the end of everything that belonged to the server
_SLOW = "allow more time if the machine is slow or busy; else see the log lines"
_STREAMED = "close the gRPC streams of its clients: Triton keeps a model until the stream of its last request is closed"
_SOCKET_TAKEN = re.compile(r"Socket '[^']*:(\d+)' already in use")
_DEFAULTS = ServerOptions()


@dataclass(slots=True)
class _Run:
    workspace: Workspace
    log: ServerLog
    process: SupervisedServer
    ports: Ports


class EmbeddedServer:
    """A tritonserver in explicit model control over a repository; a context manager that leaves nothing behind.

    Entering starts it and waits until it answers; nothing is loaded yet. Whatever ends it (leaving the block, an
    exception, a crash, `kill -9` of this process or of the server) its processes, its shared memory and its private
    directory go too. A server that crashes or hangs in a call is ended and reported as ExternalError with its last
    log lines.
    """

    def __init__(self, repository: Path, runtime: Runtime, options: ServerOptions = _DEFAULTS) -> None:
        self._repository, self._runtime, self._options = repository, runtime, options
        self._flags = options.flags or measuring_flags(repository)
        self._run: _Run | None = None
        self._lost: ExternalError | None = None
        self.run_id = f"tritune-{secrets.token_hex(6)}"

    def __enter__(self) -> EmbeddedServer:
        try:
            for _ in range(_PORT_TRIES):
                self._launch(choose_ports(self._options))
                if self._wait_ready():
                    return self
                self.stop()
        except BaseException:
            self.stop()
            raise
        raise ExternalError("no free ports", where=self._options.host, hint="other programs took them each time")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        """HOST:PORT of the HTTP endpoint, as perf_analyzer's `-u` takes it."""
        return f"{self._options.host}:{self._running.ports.http}"

    @property
    def grpc_url(self) -> str:
        return f"{self._options.host}:{self._running.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"{self._options.host}:{self._running.ports.metrics}"

    @property
    def pid(self) -> int:
        """Process id of tritonserver; the Python backend's processes are its children."""
        return self._running.process.pid

    @property
    def log_path(self) -> Path:
        """The log, which is removed with the server; errors carry its last lines."""
        return self._running.log.path

    def alive(self) -> bool:
        """Whether the process is there (it may still hang: only a call can tell)."""
        return self._run is not None and self._run.process.alive()

    def require_alive(self, when: str) -> None:
        """Raise ExternalError when the process has ended: what answers at its address then is another server."""
        if not self._running.process.alive():
            raise self._died(when)

    def models(self) -> list[str]:
        """Names of the repository's models: directories with a configuration or a model file."""
        return self._running.workspace.model_names()

    def load(self, name: str, config: ModelConfig | None = None, deadline_s: float | None = None) -> None:
        """Load or reload a model, with `config` in place of the one on disk when given, and wait until a replaced
        instance is gone. A model loaded with `config` stays so until it is loaded with another one.

        Raises UsageError for a name that is not in the repository, Refused with Triton's reason (the model that was
        loaded before then keeps serving), ExternalError on a crash or after `deadline_s` (default: load_timeout_s).
        """
        run = self._running
        limit_s = self._options.load_timeout_s if deadline_s is None else deadline_s
        started, mark = time.monotonic(), run.log.mark()

        def call(http: TritonHttp) -> None:
            run.workspace.require(name)
            run.workspace.require_code(name, config)
            http.load(name, None if config is None else _as_json(config))

        def reason(answer: Answer) -> str:
            return run.workspace.for_user(refusal_reason(name, answer.reason, run.log.lines(mark)))

        self._ask(f"loading `{name}`", call, reason, limit_s)
        self._settle(name, started, limit_s)

    def unload(self, name: str) -> None:
        """Unload a model and wait until its instances are gone; requests in flight are answered first.

        Raises ExternalError after load_timeout_s: a gRPC stream that its last answer went over must be closed before.
        """
        started = time.monotonic()
        self._ask(f"unloading `{name}`", lambda http: http.unload(name))
        self._settle(name, started, self._options.load_timeout_s)

    def alias(self, name: str, model_dir: Path) -> None:
        """Serve the files of `model_dir` under a second name too; load it with a config of that name.

        So two configurations of one model stand side by side. Raises UsageError when the name is taken.
        """
        self.require_alive(f"before `{name}` could be added")
        self._running.workspace.alias(name, model_dir)

    def model_config(self, name: str) -> dict[str, Any]:
        """The configuration in force, completed by Triton. Raises Refused when the model is not loaded."""
        return self._ask(f"asking for the config of `{name}`", lambda http: http.model_config(name))

    def stats(self, name: str) -> dict[str, Any]:
        """Triton's statistics of the newest version: cumulative counts, durations in nanoseconds.

        Raises Refused when the model is not loaded.
        """
        return self._ask(f"asking for the statistics of `{name}`", lambda http: http.stats(name))

    def metrics(self) -> str:
        """The text of the metrics endpoint. Raises ExternalError when it does not answer."""
        try:
            return read_metrics(self.metrics_url, _CRASH_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            raise ExternalError("the metrics do not answer", where=self.metrics_url, got=error) from error

    def trace(self, name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """The trace settings in force for a model, after changing some (see TritonHttp)."""
        return self._ask(f"asking for the trace of `{name}`", lambda http: http.trace(name, settings))

    def scatter(self) -> None:
        """Move the server's threads to other CPUs at random, so that no model keeps a better place than another."""
        self._running.process.scatter()

    def watch(self) -> NoReturn:
        """Block while the server runs. Raises ExternalError when it ends by itself."""
        self._running.process.wait()
        raise self._died("while serving")

    def stop(self) -> None:
        """End the server: SIGTERM, a grace period, SIGKILL. Nothing to do when it does not run."""
        self._end(graceful=True)

    @property
    def _running(self) -> _Run:
        if self._run is None:
            if self._lost:  # another thread found it dead
                raise self._lost
            raise ExternalError("the server is not running", hint="use EmbeddedServer as a context manager")
        return self._run

    def _launch(self, ports: Ports) -> None:
        workspace = Workspace(self._repository, self._runtime.backends, self.run_id)
        try:
            log = ServerLog(workspace.log)
            command = self._command(workspace, ports)
            env = self._runtime.env() | {"TMPDIR": str(workspace.root)}  # what its programs leave goes with it
            process = SupervisedServer(self.run_id, command, env, workspace.root, log.path)
        except BaseException:
            workspace.remove()
            raise
        self._run, self._lost = _Run(workspace, log, process, ports), None

    def _command(self, workspace: Workspace, ports: Ports) -> list[str]:
        options = self._options
        command = [
            str(self._runtime.tritonserver),
            f"--id={self.run_id}",
            *replace(self._flags, control="explicit", load=()).arguments(str(workspace.models)),
            f"--model-repository={workspace.aliases}",
            f"--cache-directory={self._runtime.tritonserver.parents[1] / 'caches'}",
            f"--backend-directory={workspace.backends}",
            f"--backend-config=python,shm-region-prefix-name={self.run_id}-",
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            f"--log-verbose={options.log_verbose}",
        ]
        for name, port in ports._asdict().items():
            command += [f"--{name}-address={options.host}", f"--{name}-port={port}"]
        if options.strict_config:
            command.append("--disable-auto-complete-config")
        if options.trace_file is not None:
            command += [f"--trace-config=triton,file={options.trace_file}", "--trace-config=level=OFF"]
        return command

    def _wait_ready(self) -> bool:
        """Wait until all endpoints answer; False when another program took a port that we had chosen ourselves."""
        run, limit_s = self._running, self._options.start_timeout_s
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if not run.process.alive():
                return self._lost_port()
            try:
                ours = TritonHttp(self.http_url, _READY_TIMEOUT_S).server_name() == self.run_id
                for url in (self.grpc_url, self.metrics_url):
                    _connect(url, _READY_TIMEOUT_S)
            except (OSError, Answer, http.client.HTTPException, ValueError, KeyError):
                ours = False
            if ours:
                return True
            time.sleep(_POLL_S)
        raise self._hung("starting", limit_s)

    def _lost_port(self) -> bool:
        """The server ended while starting: False if the reason was a port chosen by us, else raise why."""
        run, options = self._running, self._options
        for _, message in run.log.lines():
            if match := _SOCKET_TAKEN.search(message):
                name = Ports._fields[run.ports.index(int(match[1]))]
                if int(match[1]) in (options.http_port, options.grpc_port, options.metrics_port):
                    raise port_taken(options.host, name, int(match[1]))
                return False
        raise self._died("while starting")

    def _ask(
        self,
        doing: str,
        call: Callable[[TritonHttp], _T],
        reason: Callable[[Answer], str] = lambda answer: plain_reason(answer.reason),
        limit_s: float | None = None,
    ) -> _T:
        self.require_alive(f"before {doing}")
        run, limit_s = self._running, self._options.request_timeout_s if limit_s is None else limit_s
        try:
            return call(TritonHttp(self.http_url, limit_s))
        except Answer as answer:
            raise Refused(reason(answer), where=f"Triton, {doing}") from None
        except TimeoutError:
            raise self._hung(doing, limit_s) from None
        except (OSError, http.client.HTTPException):
            run.process.wait(_CRASH_TIMEOUT_S)
            raise self._died(f"while {doing}") from None

    def _settle(self, name: str, started: float, limit_s: float) -> None:
        """Wait until a model has no more Python backend processes than instances: replaced ones end with a delay."""
        run = self._running
        doing = f"waiting for the replaced instances of `{name}` to end"
        places = run.workspace.models / name, run.workspace.aliases / name
        while True:
            states = self._ask(doing, lambda http: http.states(name))
            stubs = sum(map(run.process.stubs, places))
            wanted = _instances(self.model_config(name)) * states.count("READY") if stubs and "READY" in states else 0
            if stubs <= wanted and "UNLOADING" not in states:
                return
            if time.monotonic() - started > limit_s:
                raise self._hung(doing, limit_s, _STREAMED if "UNLOADING" in states else _SLOW)
            time.sleep(_POLL_S)

    def _died(self, when: str) -> ExternalError:
        process = self._running.process
        how = "cannot be reached" if process.alive() else process.outcome()
        return self._failure(f"tritonserver {how} {when}", "see the log lines; `tritune doctor` checks this machine")

    def _hung(self, doing: str, limit_s: float, hint: str = _SLOW) -> ExternalError:
        what = f"tritonserver did not answer within {limit_s:g} s while {doing}, and was ended"
        return self._failure(what, hint)

    def _failure(self, what: str, hint: str) -> ExternalError:
        """The error for a server that is of no use any more; it is ended, without grace."""
        self._lost = ExternalError(f"{what}; its last log lines:\n{self._running.log.tail()}", hint=hint)
        self._end(graceful=False)
        return self._lost

    def _end(self, *, graceful: bool) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.process.stop(graceful=graceful)
        finally:
            run.process.close()
            run.log.close()
            run.workspace.remove()


def _connect(url: str, timeout_s: float) -> None:
    host, _, port = url.rpartition(":")
    socket.create_connection((host, int(port)), timeout_s).close()


def _as_json(config: ModelConfig) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(config, preserving_proto_field_name=True))


def _instances(config: dict[str, Any]) -> int:
    """Instances of one version, from a completed configuration: `count` is per GPU."""
    return sum(group["count"] * max(1, len(group["gpus"])) for group in config["instance_group"])
