"""What a deployment takes: quantities and image names, as Kubernetes and docker have them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tooling.deploy.inputs import check_image, gpu_ids, monitoring_ports, quantity
from tooling.deploy.store import check_bucket, port_of, without_address
from tooling.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("4", "4"), ("500m", "0.5"), ("1.5", "1.5"), ("2k", "2000"), ("8Gi", str(8 * 2**30)), ("8G", "8000000000")),
        *(("1Ki", "1024"), ("1Mi", str(2**20)), ("1E", str(10**18)), ("1Ei", str(2**60))),
    ],
)
def test_a_quantity_is_what_kubernetes_takes_it_for(text: str, value: str) -> None:
    assert quantity("--cpu", text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "0", "0m", "-1", "4 ", "4K", "8GB", "8gi", "1e3x", "٤", "4mi", "Gi"])
def test_no_quantity(text: str) -> None:
    with pytest.raises(UsageError):
        quantity("--memory", text)


@pytest.mark.parametrize(
    "name",
    ["models", "models:1", "registry:5000/team/models:v1.2", "ghcr.io/a/b-c__d@sha256:" + "0" * 64, "localhost/m"],
)
def test_names_of_images(name: str) -> None:
    check_image("--image", name)


@pytest.mark.parametrize("name", ["a b", "../m", "/m", "m:", "m@sha256:1", "r.io/Team/m", "m;rm", "m\n"])
def test_no_names_of_images(name: str) -> None:
    with pytest.raises(UsageError):
        check_image("--image", name)


def test_gpus() -> None:
    assert (gpu_ids("all"), gpu_ids("none"), gpu_ids("0, 1")) == (None, (), ("0", "1"))
    assert gpu_ids("GPU-3a2b,MIG-1c") == ("GPU-3a2b", "MIG-1c")


def test_ports_of_monitoring_differ_from_all_others() -> None:
    assert monitoring_ports({"--http-port": 8000}) == (9090, 3000)
    assert monitoring_ports({"--http-port": 9090, "--grpc-port": 3000, "--metrics-port": 3001}) == (9091, 3002)


@pytest.mark.parametrize(
    ("url", "port", "elsewhere"),
    [
        ("s3://b", 443, "s3://b"),
        ("s3://my.bucket/models/v1/", 443, "s3://my.bucket/models/v1/"),
        ("gs://my_bucket/m", 443, "gs://my_bucket/m"),
        ("s3://minio:9000/b/m", 9000, "s3://b/m"),
        ("s3://http://10.0.0.7:80/b", 80, "s3://b"),
    ],
)
def test_object_stores(url: str, port: int, elsewhere: str) -> None:
    check_bucket(url)
    assert (port_of(url), without_address(url)) == (port, elsewhere)


@pytest.mark.parametrize(
    "url",
    [
        *("", "s3://", "s3:///", "s3:///m", "s3://b//m", "s3://b/../m", "s3://b/ m", "gs://", "s3://b?x=1", "S3://b/m"),
        *("as://a/b", "https://b/m", "s3://https://b/m", "s3://h:0/b", "s3://h:99999/b", "gs://h:9000/b", "s3://b/m\n"),
    ],
)
def test_no_object_stores(url: str) -> None:
    with pytest.raises(UsageError, match="no object store"):
        check_bucket(url)
