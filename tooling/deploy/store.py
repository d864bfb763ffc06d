"""Object stores that hold a model repository, and where credentials for them come from. Layer: deploy, its bottom."""

from __future__ import annotations

import re
from typing import Final

from tooling.errors import UsageError

_BUCKET: Final = re.compile(
    r"(s3://((https?://)?[A-Za-z0-9.-]+:(?P<port>[0-9]{1,5})/)?|gs://)"  # an S3 of one's own has an address
    r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*/?"
)
HTTPS: Final = 443
S3_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION")
"""What Triton reads for s3://; for gs:// it reads the key file that GOOGLE_APPLICATION_CREDENTIALS names."""
KEY_FILE: Final = "key.json"
"""What that file is called in a Secret."""


def check_bucket(url: str) -> None:
    """Raises UsageError for what is no s3:// or gs:// URL."""
    if not _BUCKET.fullmatch(url) or {".", ".."} & set(url.split("/")) or not 0 < port_of(url) < 2**16:
        expected = "s3://BUCKET/PATH, gs://BUCKET/PATH, or s3://HOST:PORT/BUCKET/PATH for a store of your own"
        raise UsageError("no object store", where="--bucket", got=f"`{url}`", expected=expected)


def is_s3(url: str) -> bool:
    """Whether credentials are variables; else they are a key file."""
    return url.startswith("s3://")


def port_of(url: str) -> int:
    """Where Triton asks for the repository: the cloud's stores by HTTPS, another where its URL says."""
    found = _BUCKET.fullmatch(url)
    return int(found["port"]) if found and found["port"] else HTTPS


def without_address(url: str) -> str:
    """The URL as KServe takes it, which has the address of a store of one's own from the credentials."""
    found = _BUCKET.fullmatch(url)
    return f"s3://{url[found.end(2) :]}" if found and found["port"] else url
