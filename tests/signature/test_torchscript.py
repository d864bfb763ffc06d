"""TorchScript: the arguments of `forward` are read from the code in the archive, which is never unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tooling.errors import UsageError
from tooling.signature.declared import Declared, declare
from tooling.signature.torchscript import read_torchscript

X, Y = "x:FP32:-1,3", "y:FP32:-1,2"
PICKLE = b"\x80\x02c__torch__\nNet\nq\x00."


@pytest.fixture
def archive(tmp_path: Path):
    """`archive(forward)` writes an archive whose code holds `forward`; other entries as keywords."""

    def write(forward: str = "def forward(self, x: Tensor) -> Tensor:\n    return x", **entries: bytes) -> Path:
        code = "class Net(Module):\n  __parameters__ = []\n" + "\n".join(f"  {line}" for line in forward.splitlines())
        content = {"data.pkl": PICKLE, "code/__torch__.py": code.encode(), "version": b"3\n"}
        content |= {name.replace("__", "/").replace("pkl", ".pkl"): data for name, data in entries.items()}
        path = tmp_path / "model.pt"
        with zipfile.ZipFile(path, "w") as target:
            for name, data in content.items():
                target.writestr(f"model/{name}", data)
        return path

    return write


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_what_torch_itself_writes(tmp_path):
    import torch

    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(3, 2))

        def forward(self, x, mask):
            return self.layers(x), mask

    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.trace(Pair(), (torch.zeros(1, 3), torch.zeros(1))), path)
    signature = read_torchscript(path, declare([X, "mask:FP32:-1"], ["OUTPUT__0:FP32:-1,2"]))
    assert signature.arguments == ("x", "mask") and signature.backend == "pytorch"
    with pytest.raises(UsageError, match=r"got 1; expected 2: `x`, `mask`"):
        read_torchscript(path, declare([X], [Y]))
    with pytest.raises(UsageError, match=r"returns fewer tensors \(got 3; expected 2\)"):
        read_torchscript(path, declare([X, "mask:FP32:-1"], [Y, Y, Y]))
    torch.save(Pair().state_dict(), path)
    with pytest.raises(UsageError, match="a checkpoint"):
        read_torchscript(path, declare([X], [Y]))


def test_types_and_shapes_must_be_given(archive):
    with pytest.raises(UsageError, match="does not say the types and shapes of `x`"):
        read_torchscript(archive(), Declared())


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("def forward(self, x: Tensor, n: int) -> Tensor: pass", "argument `n` of `forward` is no tensor (got int"),
        ("def forward(self, x: Optional[Tensor]) -> Tensor: pass", "argument `x` of `forward` is no tensor"),
        ("def forward(self, x: Tensor) -> Dict[str, Tensor]: pass", "returns more than tensors (got Dict[str, Tensor]"),
        ("def other(self): pass", "class `Net` without `forward`"),
        ("def forward(self, x: Tensor!) -> Tensor: pass", "code that cannot be read"),
    ],
)
def test_what_triton_cannot_call(forward, said, archive):
    with pytest.raises(UsageError) as caught:
        read_torchscript(archive(forward), declare([X], [Y]))
    assert said in str(caught.value)


def test_a_dictionary_takes_any_names(archive):
    path = archive("def forward(self, x: Dict[str, Tensor]) -> Tensor: pass")
    assert read_torchscript(path, declare([X, "b:INT64:-1"], [Y])).arguments == ()


def test_a_pickle_is_never_run(archive, tmp_path):
    """The archive's pickle would make a file if anything loaded it."""
    trap = b"\x80\x02cpathlib\nPath\nX" + len(str(tmp_path / "run")).to_bytes(4, "little")
    trap += str(tmp_path / "run").encode() + b"\x85Rq\x00."
    with pytest.raises(UsageError, match=r"without code/pathlib\.py"):
        read_torchscript(archive(datapkl=trap), declare([X], [Y]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x80\x02 a pickle of old"])
def test_no_archive(content, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a TorchScript file"):
        read_torchscript(path, declare([X], [Y]))


@pytest.mark.parametrize("pickle", [b"", b"\x80\x02N.", b"\xff\xff"])
def test_a_broken_pickle(pickle, archive):
    with pytest.raises(UsageError, match="not a TorchScript file"):
        read_torchscript(archive(datapkl=pickle), declare([X], [Y]))
