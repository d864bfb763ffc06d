"""Ensembles from a graph or from shared names: types, shapes, batches and order are checked before Triton would."""

from __future__ import annotations

import pytest

from tooling.config.ensemble import build_ensemble, infer_graph, parse_graph
from tooling.config.proto import pb
from tooling.errors import UsageError


def model(name: str, inputs: str, outputs: str, top: int = 8):
    """`model("enc", "ids:INT64:-1", "hid:FP32:-1,4")`; a `?` behind an input makes it optional."""
    config = pb().ModelConfig(name=name, max_batch_size=top)
    for target, text in ((config.input, inputs), (config.output, outputs)):
        for part in text.split():
            tensor, data_type, dims = part.split(":")
            target.add(name=tensor.rstrip("?"), data_type=f"TYPE_{data_type}", dims=map(int, dims.split(",")))
            if tensor.endswith("?"):
                target[-1].optional = True
    return config


TOK = model("tok", "text:STRING:1", "ids:INT64:-1 mask:INT64:-1")
ENC = model("enc", "ids:INT64:-1 mask:INT64:-1", "hid:FP32:-1,4", top=4)
HEAD = model("head", "hidden:FP32:-1,4 scale?:FP32:1", "emb:FP32:4")
MODELS = {config.name: config for config in (TOK, ENC, HEAD)}
JOINED = {"steps": ["tok", "enc", {"model": "head", "inputs": {"hidden": "hid"}}]}


def tensors(values) -> list[tuple]:
    return [(t.name, pb().DataType.Name(t.data_type), list(t.dims)) for t in values]


def refused(graph: dict, models=MODELS) -> list[str]:
    with pytest.raises(UsageError) as caught:
        build_ensemble("pipe", parse_graph(graph, "graph.yaml"), models)
    return [str(problem) for problem in caught.value.problems]


def test_a_graph():
    config = build_ensemble("pipe", parse_graph(JOINED, "graph.yaml"), MODELS)
    assert (config.platform, config.backend, config.max_batch_size) == ("ensemble", "", 4)
    assert tensors(config.input) == [("text", "TYPE_STRING", [1])]
    assert tensors(config.output) == [("emb", "TYPE_FP32", [4])]
    steps = config.ensemble_scheduling.step
    assert [(s.model_name, s.model_version) for s in steps] == [("tok", -1), ("enc", -1), ("head", -1)]
    assert dict(steps[1].input_map) == {"ids": "ids", "mask": "mask"}
    assert dict(steps[2].input_map) == {"hidden": "hid"}  # the optional input is left out
    assert not config.instance_group and not config.HasField("optimization")


def test_equal_names_join():
    head = model("head", "hid:FP32:-1,4", "emb:FP32:4")
    models = {"enc": ENC, "head": head, "tok": TOK}
    config = build_ensemble("pipe", infer_graph(models), models)
    assert [s.model_name for s in config.ensemble_scheduling.step] == ["tok", "enc", "head"]
    assert [t.name for t in config.input] == ["text"] and [t.name for t in config.output] == ["emb"]
    chosen = build_ensemble("pipe", infer_graph(models, ["tok", "enc"]), models)
    assert [t.name for t in chosen.output] == ["hid"]


def test_chosen_outputs_drop_what_nobody_takes():
    wide = model("enc", "ids:INT64:-1", "hid:FP32:4 pooled:FP32:4")
    config = build_ensemble("pipe", parse_graph({"steps": ["enc"], "outputs": ["pooled"]}, "g"), {"enc": wide})
    assert dict(config.ensemble_scheduling.step[0].output_map) == {"pooled": "pooled"}
    assert [t.name for t in config.output] == ["pooled"]


def test_what_a_tokenizer_gives_too_much_goes_nowhere():
    more = model("tok", "text:STRING:1", "ids:INT64:-1 mask:INT64:-1 token_type_ids:INT64:-1")
    config = build_ensemble("pipe", infer_graph(MODELS, ["tok", "enc"]), MODELS | {"tok": more})
    assert dict(config.ensemble_scheduling.step[0].output_map) == {"ids": "ids", "mask": "mask"}
    assert [t.name for t in config.output] == ["hid"]


def test_a_step_that_does_not_batch_makes_the_shapes_whole():
    single = model("enc", "ids:INT64:-1,-1 mask:INT64:-1,-1", "hid:FP32:-1,-1,4", top=0)
    config = build_ensemble("pipe", parse_graph({"steps": ["tok", "enc"]}, "g"), {"tok": TOK, "enc": single})
    assert config.max_batch_size == 0
    assert tensors(config.input) == [("text", "TYPE_STRING", [-1, 1])]


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ({"steps": ["tok", "enk"]}, "no model `enk` with a config in the repository"),
        (
            {"steps": ["tok", {"model": "enc", "inputs": {"IDS": "ids"}}]},
            "step 1 (enc): no input called `IDS` (expected ids, mask",
        ),
        ({"steps": ["tok", "enc"], "outputs": ["hidd"]}, "output `hidd` is never produced (expected ids, mask, hid"),
        ({"steps": ["tok", "enc"], "max_batch_size": 8}, "allows batch 8 but step `enc` allows only 4"),
        ({"steps": ["tok", {"model": "tok", "inputs": {"text": "again"}}]}, "tensor `ids` is produced twice"),
        ({"steps": [{"model": "tok", "outputs": {"ids": "a", "mask": "a"}}]}, "tensor `a` is produced twice"),
        (
            {"steps": [{"model": "enc", "outputs": {"hid": "loop"}},
                       {"model": "head", "inputs": {"hidden": "loop"}, "outputs": {"emb": "ids"}}]},
            "the steps wait for each other in a circle (got `enc`, `head`",
        ),
        ({"steps": ["tok", "enc", "head"], "outputs": ["emb"]}, "nothing takes an output of step `enc`"),
    ],
)  # fmt: skip
def test_what_the_graph_gets_wrong(graph, said):
    found = refused(graph)
    assert any(said in problem for problem in found), found


def test_types_and_shapes_of_neighbours():
    half = model("head", "hid:FP16:-1,4", "emb:FP32:4")
    assert (
        "tensor `hid` has two types (got TYPE_FP16; expected TYPE_FP32"
        in refused({"steps": ["tok", "enc", "head"]}, MODELS | {"head": half})[0]
    )
    wide = model("head", "hid:FP32:-1,8", "emb:FP32:4")
    assert (
        "tensor `hid` has two shapes (got [-1, -1, 8]; expected [-1, -1, 4]"
        in refused({"steps": ["tok", "enc", "head"]}, MODELS | {"head": wide})[0]
    )


def test_a_model_without_tensors_in_its_config():
    found = refused({"steps": ["tok", "enc"]}, MODELS | {"enc": pb().ModelConfig(name="enc")})
    assert "the config of `enc` does not list its tensors" in found[0]


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ({}, "no steps"),
        ({"steps": [], "output": []}, "unknown key `output`"),
        ({"steps": [1]}, "step 0: names no model"),
        ({"steps": [{"model": "a", "input": {}}]}, "step 0: unknown key `input`"),
        ({"steps": [{"model": "a", "inputs": ["x"]}]}, "step 0: not a map of names"),
        ({"steps": ["a"], "outputs": "x"}, "outputs: not a list of names"),
        ({"steps": ["a"], "max_batch_size": -1}, "max_batch_size: not a batch size"),
    ],
)
def test_no_graph(graph, said):
    with pytest.raises(UsageError) as caught:
        parse_graph(graph, "graph.yaml")
    assert said in str(caught.value)


def test_models_that_share_no_names():
    with pytest.raises(UsageError, match=r"share no tensor names \(got `head`"):
        infer_graph(MODELS)
    with pytest.raises(UsageError, match="share no tensor names"):
        infer_graph({"tok": TOK})
    with pytest.raises(UsageError, match="no model `tokk` with a config in the repository"):
        infer_graph(MODELS, ["tokk", "enc"])
