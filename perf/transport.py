"""How requests reach the server: protocol, TLS, headers, shared memory, as perf_analyzer's options. Layer: bottom of
perf.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tooling.errors import UsageError

Protocol = Literal["grpc", "http"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. Without `ca` the system's authorities are trusted; `certificate` and `key` are the client's
    own, for a server that asks for them. `verify=False` takes any server (HTTP only)."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Transport:
    """The way of the requests. `headers` go with each (as metadata over gRPC). With `shared_memory` tensors pass
    through the system's shared memory, each output through a region of `output_bytes` a row: the server must run on
    this machine, and nothing else may use shared memory with it, as perf_analyzer first unregisters every region."""

    protocol: Protocol = "grpc"
    headers: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None
    shared_memory: bool = False
    output_bytes: int = 102_400

    def options(self, url: str) -> tuple[str, ...]:
        """The options for a server at `url` (host:port). Raises UsageError for what perf_analyzer would choke on."""
        address = url.removeprefix("http://").removeprefix("https://").rstrip("/")
        secure_http = self.protocol == "http" and self.tls is not None
        options = ["-u", f"https://{address}" if secure_http else address, "-i", self.protocol]
        for name, value in self.headers:
            if not name.strip() or ":" in name or any(c in name + value for c in "\r\n"):
                expected = "a name without a colon, and one line"
                raise UsageError("not a header", where="headers", got=f"{name}: {value}", expected=expected)
            options += ["-H", f"{name}:{value}"]
        if self.tls is not None:
            options += self._tls(self.tls)
        if self.shared_memory:
            options += ["--shared-memory", "system", "--output-shared-memory-size", str(self.output_bytes)]
        return tuple(options)

    def _tls(self, tls: Tls) -> list[str]:
        files = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
        for role, file in files.items():
            if file is not None and not file.is_file():
                raise UsageError("there is no such file", where=f"tls, {role}", got=file, expected="a PEM file")
        if (tls.certificate is None) != (tls.key is None):
            raise UsageError("a client certificate needs its key", where="tls", expected="both or neither")
        given = {role: str(file.absolute()) for role, file in files.items() if file is not None}
        if self.protocol == "grpc":
            if not tls.verify:
                raise UsageError(
                    "over gRPC the server is always verified", where="tls", hint="give its authority as ca"
                )
            names = {"ca": "root-certifications", "certificate": "certificate-chain", "key": "private-key"}
            pairs = [(f"--ssl-grpc-{names[role]}-file", file) for role, file in given.items()]
            return ["--ssl-grpc-use-ssl", *(word for pair in pairs for word in pair)]
        names = {"ca": "ca-certificates", "certificate": "client-certificate", "key": "private-key"}
        pairs = [(f"--ssl-https-{names[role]}-file", file) for role, file in given.items()]
        pairs += [] if tls.verify else [("--ssl-https-verify-peer", "0"), ("--ssl-https-verify-host", "0")]
        return [word for pair in pairs for word in pair]
