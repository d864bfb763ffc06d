"""Where configurations of one model are served to be measured: the embedded server, or one that runs already. Layer:
above client."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from perf.client import Connection
from tooling.config.proto import renamed
from tooling.errors import ExternalError, MissingError, Refused, UsageError
from tooling.releases import current_release
from tooling.server.embedded import EmbeddedServer
from tooling.server.journal import Journal
from tooling.server.options import ServerOptions
from tooling.server.running import Identity, RunningServer

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.runtime import Runtime
    from tooling.signature.spec import ModelSignature


_DEFAULTS = ServerOptions()


def _timed_ms(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return (time.perf_counter() - start) * 1e3


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration of the model: `id` names it in a study; `model_dir` holds its files where a server of our own
    is to serve them."""

    id: str
    config: ModelConfig
    model_dir: Path | None = None


class Served(NamedTuple):
    """The name that requests to a variant go to, and whether it was loaded just now: then warm it up first."""

    name: str
    fresh: bool


class Target(ABC):
    """A server and one model on it; a context manager. `url` is HOST:PORT of `protocol`, as perf_analyzer takes it.

    `pid` is the server's process, None for one whose load cannot be told apart from that of other programs.
    """

    server: EmbeddedServer | RunningServer
    protocol: Literal["grpc", "http"]
    side_by_side: bool
    """Whether several variants stay loaded; else each takes the place of the other."""

    @abstractmethod
    def __enter__(self) -> Target: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def pid(self) -> int | None: ...

    @property
    def metrics(self) -> Callable[[], str] | None:
        """What reads the server's metrics, which tell refused requests by reason; None where their port is unknown."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What of the server a measurement holds for; known before entering."""

    @abstractmethod
    def serve(self, variant: Variant) -> Served:
        """Make the variant answer. Raises Refused when Triton refuses it, UsageError when it may not be loaded."""

    def hold(self, *variants: Variant) -> None:  # noqa: B027 - nothing to do where one takes the place of the other
        """Which variants, beside the first, `serve` may leave loaded from now on; by default the one served. They may
        be loaded at once, all together; one that is refused is so again when it is served."""

    def clear(self) -> None:  # noqa: B027 - nothing to do where one takes the place of the other
        """Let go of all variants, so that the next one is the first."""

    def reload(self, variant: Variant) -> tuple[str, float] | None:
        """Load a variant other than the first anew: its name and the seconds until it was ready; None where models are
        not unloaded."""
        return None

    def ask(self, request: bytes, times: int) -> list[float]:
        """Send an encoded request so many times, one after the other; the latencies in ms."""
        with Connection(self.http_url, 60) as connection:
            return [_timed_ms(lambda: connection.send(request)) for _ in range(times)]

    @property
    @abstractmethod
    def http_url(self) -> str: ...

    @abstractmethod
    def scatter(self) -> None:
        """Deal the server's threads out to the CPUs anew, where that is ours to do: before each run."""

    @abstractmethod
    def check(self, name: str) -> None:
        """Raise ExternalError unless it is still the same server with the same configuration under `name`."""

    def stats(self, name: str) -> dict[str, Any]:
        """Triton's cumulative statistics of a model. Raises Refused when it is not loaded."""
        return self.server.stats(name)

    def config_in_force(self, name: str) -> dict[str, Any]:
        """The configuration as Triton completed it."""
        return self.server.model_config(name)

    def trace(self, name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        """The trace settings in force for a model, after changing some. Raises Refused without a trace file."""
        return self.server.trace(name, settings)


def embedded_facts() -> dict[str, Any]:
    """What of an embedded server a measurement holds for."""
    release = current_release()
    return {"tritonserver": release.tritonserver, "onnxruntime": release.onnxruntime}


class EmbeddedTarget(Target):
    """A server of our own, started on entering. The first variant stays loaded, and beside it those that are held, so
    that they answer side by side and no time passes between their runs."""

    server: EmbeddedServer
    protocol, side_by_side = "grpc", True

    def __init__(self, repository: Path, runtime: Runtime, options: ServerOptions = _DEFAULTS) -> None:
        self.server = EmbeddedServer(repository, runtime, options)
        self._loaded: dict[str, Variant] = {}
        """What is loaded, by its name; the first variant is the first."""
        self._fresh: set[str] = set()
        """Which of it was never served yet."""
        self._held: tuple[Variant, ...] = ()
        self._aliases: dict[Path, list[str]] = {}

    def __enter__(self) -> EmbeddedTarget:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop()

    @property
    def url(self) -> str:
        return self.server.grpc_url

    @property
    def pid(self) -> int:
        return self.server.pid

    @property
    def metrics(self) -> Callable[[], str]:
        return self.server.metrics

    def facts(self) -> dict[str, Any]:
        return embedded_facts()

    def serve(self, variant: Variant) -> Served:
        if variant not in self._loaded.values():
            self._leave(*(one for one in self._others() if self._loaded[one] not in self._held))
            self._load([variant])
        name = next(name for name, one in self._loaded.items() if one == variant)
        fresh = name in self._fresh
        self._fresh.discard(name)
        return Served(name, fresh)

    def hold(self, *variants: Variant) -> None:
        self._held = variants
        if missing := [one for one in variants if one not in self._loaded.values()]:
            self._leave(*(one for one in self._others() if self._loaded[one] not in variants))
            with suppress(Refused):
                self._load(missing)

    def _load(self, variants: Sequence[Variant]) -> None:
        """Load them at the same time, as most of it is waiting for new processes. Raises Refused for the first that
        Triton refuses, when all others are loaded."""
        names = []
        for variant in variants:
            names.append(self._name(variant))
            self._loaded[names[-1]] = variant
        with ThreadPoolExecutor(len(names)) as pool:
            loads = [pool.submit(self.server.load, name, renamed(self._loaded[name].config, name)) for name in names]
        for name, load in zip(names, loads, strict=True):
            if load.exception():
                del self._loaded[name]
        self._fresh |= self._loaded.keys() & {*names}
        for load in loads:
            load.result()

    def reload(self, variant: Variant) -> tuple[str, float] | None:
        self._leave(*self._others())
        start = time.monotonic()
        return self.serve(variant).name, time.monotonic() - start

    def clear(self) -> None:
        self._leave(*reversed(self._loaded))

    def _others(self) -> list[str]:
        return list(self._loaded)[1:]

    def _leave(self, *names: str) -> None:
        for name in names:
            del self._loaded[name]
            self._fresh.discard(name)
        with ThreadPoolExecutor(len(names) or 1) as pool:  # most of it is waiting for processes to end
            list(pool.map(self.server.unload, names))

    @property
    def http_url(self) -> str:
        return self.server.http_url

    def scatter(self) -> None:
        self.server.scatter()

    def check(self, name: str) -> None:
        self.server.require_alive("while it was measured")
        with suppress(Refused):  # a model that is gone is the variant's fault
            self.server.stats(name)

    def _name(self, variant: Variant) -> str:
        """The first variant's own, or another name for the files of its directory that is free."""
        directory = variant.model_dir
        assert directory is not None, "a server of our own needs the model's files"
        if not self._loaded:
            return directory.name
        names = self._aliases.setdefault(directory, [])
        if all(name in self._loaded for name in names):
            count = sum(map(len, self._aliases.values()))
            names.append(f"{next(iter(self._loaded))}.candidate{f'-{count + 1}' if count else ''}")
            self.server.alias(names[-1], directory)
        return next(name for name in names if name not in self._loaded)


class OnServer(Target):
    """Of a server that runs already: what is asked of it."""

    protocol = "http"
    server: RunningServer

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def http_url(self) -> str:
        return self.server.url

    @property
    def pid(self) -> None:
        return None

    def scatter(self) -> None: ...


class RunningTarget(OnServer):
    """A server that runs already, and one model on it, by default the only one.

    Without `reconfigure` it is only measured, as it is; with it variants are loaded in place of the model's own
    configuration, which is loaded again at the end, whatever ends the block (see Journal).
    """

    side_by_side = False

    def __init__(self, url: str, model: str, *, reconfigure: bool = False, journals: Path | None = None) -> None:
        self.server, self.reconfigure = RunningServer(url), reconfigure
        self._identity: Identity = self.server.identity()
        self.model = model or self._only_model()
        self._original = self.server.model_config(self.model)
        self._journal = Journal(self.server, self.model, journals)
        self._stack = ExitStack()
        if reconfigure:
            self.server.require_control()
        self._current, self._config = self._original, self.config()
        self._served = False
        self._counted = 0

    def _only_model(self) -> str:
        names = self.server.models()
        if len(names) == 1:
            return names[0]
        raise UsageError(
            "the model is not named",
            where=self.url,
            got=", ".join(names) or "no model loaded",
            hint="give --model NAME",
        )

    def __enter__(self) -> RunningTarget:
        if self.reconfigure:
            self._stack.enter_context(self._journal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def facts(self) -> dict[str, Any]:
        return {"url": self.url, "name": self._identity.name, "tritonserver": self._identity.version}

    def config(self) -> ModelConfig:
        """The server's own configuration. Raises UsageError for one of a newer schema than ours."""
        from google.protobuf.json_format import ParseDict, ParseError

        from tooling.config.proto import pb

        try:
            return ParseDict(self._original, pb().ModelConfig())
        except ParseError as error:
            raise UsageError(
                "the server's configuration has fields that are not known here",
                where=f"{self.url}, `{self.model}`",
                got=error,
                hint="install a newer tritonclient",
            ) from error

    def signature(self) -> ModelSignature:
        from tooling.server.remote_signature import read_remote

        return read_remote(self.url, self.model)

    def serve(self, variant: Variant) -> Served:
        fresh, self._served = not self._served, True
        if variant.config != self._config:
            self._load(variant)
            fresh = True
        return Served(self.model, fresh)

    def require_own(self, variants: Iterable[Variant]) -> None:
        """Raise UsageError when one of them is not the server's own configuration."""
        for variant in variants:
            if variant.config != self.config():
                raise UsageError(
                    "a running server is only measured as it is",
                    where=f"{self.url}, `{self.model}`",
                    got=f"another configuration, `{variant.id}`",
                    hint="allow it with --allow-reconfigure: the server's own configuration is loaded again at the end",
                )

    def load(self, name: str, config: ModelConfig) -> None:
        """As of an embedded server: serve `config`, under `name` for messages."""
        self.serve(Variant(name, config))

    def _load(self, variant: Variant) -> None:
        from google.protobuf.json_format import MessageToDict

        if not self.reconfigure:
            self.require_own([variant])
        own = variant.config == self.config()
        wanted = self._original if own else MessageToDict(variant.config, preserving_proto_field_name=True)
        self._current = self._journal.change(self._original, wanted)
        self._config, self._counted = variant.config, 0

    def check(self, name: str) -> None:
        try:
            same = self.server.identity() == self._identity and self.server.model_config(name) == self._current
            counted = int(self.server.stats(name)["inference_count"]) if same else 0
        except MissingError as error:
            raise self._other("the server went away") from error
        except (Refused, UsageError) as refusal:
            raise self._other("the model is gone") from refusal
        if not same:
            raise self._other("another server, or another configuration, answers here now")
        if counted < self._counted:
            raise self._other("the server was restarted, or the model loaded anew")
        self._counted = counted

    def _other(self, what: str) -> ExternalError:
        return ExternalError(
            what, where=f"{self.url}, `{self.model}`", hint="measure while nobody else changes the server"
        )
