"""An OpenVINO IR: parameters and results by the names OpenVINO answers with; hostile XML is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.errors import UsageError
from tooling.signature.openvino_ir import read_openvino


def ir(
    *,
    version: int = 11,
    shape: str = "?,?",
    element: str = "i64",
    names: str = 'names="input_ids"',
    head: str = "",
    precision: str = "FP32",
) -> str:
    return f"""<?xml version="1.0"?>{head}
<net name="model" version="{version}">
  <layers>
    <layer id="0" name="ids" type="Parameter" version="opset1">
      <data shape="{shape}" element_type="{element}"/>
      <output><port id="0" precision="I64" {names}><dim>-1</dim><dim>-1</dim></port></output>
    </layer>
    <layer id="1" name="embed" type="Gather" version="opset8">
      <input><port id="0" precision="I64"><dim>-1</dim><dim>-1</dim></port></input>
      <output><port id="1" precision="{precision}" names="zz,a\\,b"><dim>-1</dim><dim>384</dim></port></output>
    </layer>
    <layer id="2" name="embed/sink" type="Result" version="opset1">
      <input><port id="0" precision="{precision}"><dim>-1</dim><dim>384</dim></port></input>
    </layer>
    <layer id="3" name="loop" type="TensorIterator" version="opset1">
      <body><layers><layer id="0" name="inner" type="Parameter"/></layers></body>
    </layer>
  </layers>
  <edges>
    <edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
    <edge from-layer="1" from-port="1" to-layer="2" to-port="0"/>
  </edges>
</net>"""


@pytest.fixture
def read(tmp_path: Path):
    def write_and_read(text: str):
        (tmp_path / "model.xml").write_text(text)
        return read_openvino(tmp_path / "model.xml")

    return write_and_read


def test_parameters_and_results(read):
    signature = read(ir())
    assert signature.ir_version == 11
    assert [(t.name, t.data_type, t.dims) for t in (*signature.inputs, *signature.outputs)] == [
        ("input_ids", "TYPE_INT64", (-1, -1)),
        ("a,b", "TYPE_FP32", (-1, 384)),  # the first of its names in order
    ]


def test_older_irs_take_the_names_of_layers(read):
    signature = read(ir(version=10, names=""))
    assert signature.inputs[0].name == "ids"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"names": ""}, "a tensor has no name (got layer `ids`"),
        ({"element": "f64"}, "a type that Triton's OpenVINO backend does not serve (got f64"),
        ({"precision": "BF16"}, "output `a,b` has a type"),
        ({"shape": "?,1..512"}, "an axis with bounds (got shape ?,1..512"),
        ({"version": 7}, "not an OpenVINO IR (got IR version 7"),
        ({"version": "x"}, "not an OpenVINO IR"),
    ],
)
def test_what_triton_cannot_serve(change, said, read):
    with pytest.raises(UsageError) as caught:
        read(ir(**change))
    assert said in str(caught.value)


BILLION_LAUGHS = '<!DOCTYPE net [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE net SYSTEM "http://127.0.0.1:9/net.dtd">'


@pytest.mark.parametrize("head", [BILLION_LAUGHS, EXTERNAL])
def test_document_types_are_refused_before_anything_is_read(head, read):
    with pytest.raises(UsageError, match="got a document type declaration"):
        read(ir(head=head))


@pytest.mark.parametrize(
    "text",
    ["", "<net", "plain text", "<other/>", "<a>" * 100_000, "<net version='11'><layers><layer/></layers></net>"],
)
def test_other_files(text, read):
    with pytest.raises(UsageError, match="not an OpenVINO IR"):
        read(text)


def test_a_model_without_results(read):
    with pytest.raises(UsageError, match="the model has no result"):
        read("<net version='11'><layers/></net>")
