"""Object stores that hold a model repository, and where credentials for them come from. Layer: deploy, its bottom."""

from __future__ import annotations

import re
from typing import Final

from tooling.errors import UsageError

_BUCKET: Final = re.compile(r"(s3|gs)://[A-Za-z0-9._:/-]+")
S3_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION")
"""What Triton reads for s3://; for gs:// it reads the key file that GOOGLE_APPLICATION_CREDENTIALS names."""


def check_bucket(url: str) -> None:
    """Raises UsageError for what is no s3:// or gs:// URL."""
    if not _BUCKET.fullmatch(url) or {".", ".."} & set(url.split("/")):
        expected = "s3://BUCKET/PATH or gs://BUCKET/PATH"
        raise UsageError("no object store", where="--bucket", got=f"`{url}`", expected=expected)


def is_s3(url: str) -> bool:
    """Whether credentials are variables; else they are a key file."""
    return url.startswith("s3://")
