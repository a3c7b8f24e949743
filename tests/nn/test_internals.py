"""What torch does not promise, beside the public form: the same numbers, and the public form where
it is missing.
"""

import pytest
import torch
import torch.nn.functional as F

from regard.nn.devices import cpu_has_bf16
from regard.nn.fast import internals
from regard.nn.fast.readonly import ReadOnly, wide_type

CACHED = (internals._fuses_relu, internals.can_pack, internals.has_amx)


@pytest.fixture(autouse=True)
def asked_anew():
    """Answers about the machine are kept; here each test asks for itself."""
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


def refuse(*given, **more):
    raise RuntimeError("not on this machine")


def bound(x, weight):
    """What rounding may do to a sum of D products in float32, in any order."""
    return 2 * x.shape[-1] * 2**-24 * (x.abs() @ weight.abs().T).max().item()


def test_relu_in_one_kernel():
    torch.manual_seed(0)
    x, weight, bias = torch.randn(5, 12), torch.randn(7, 12), torch.randn(7)
    private, public = (
        internals.linear_relu(x, weight, bias),
        internals.linear_relu_public(x, weight, bias),
    )
    assert (public == 0).any()
    torch.testing.assert_close(private, public, atol=bound(x, weight), rtol=0)
    assert torch.equal(internals.linear_relu(x, weight, None), F.relu(F.linear(x, weight)))
    assert torch.equal(
        internals.linear_relu(x[None], weight, bias), F.relu(F.linear(x[None], weight, bias))
    )


@pytest.mark.parametrize("how", ["missing", "refuses"])
def test_relu_without_the_private_function(how, monkeypatch):
    if how == "missing":
        monkeypatch.delattr(torch, "_addmm_activation")
    else:
        monkeypatch.setattr(torch, "_addmm_activation", refuse)
    x, weight, bias = torch.randn(5, 12), torch.randn(7, 12), torch.randn(7)
    assert torch.equal(
        internals.linear_relu(x, weight, bias), internals.linear_relu_public(x, weight, bias)
    )


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_matrix(bias):
    torch.manual_seed(0)
    x, weight, b = torch.randn(5, 48), torch.randn(80, 48), torch.randn(80) if bias else None
    assert internals.can_pack(torch.float32)
    packed = internals.pack_weight(weight, 8)
    torch.testing.assert_close(
        internals.packed_linear(x, packed, b), F.linear(x, weight, b), atol=bound(x, weight), rtol=0
    )


@pytest.mark.parametrize("how", ["no oneDNN", "refuses"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_without_packed_matrices(how, kind, monkeypatch):
    if how == "no oneDNN":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    else:
        monkeypatch.setattr(internals.torch.ops, "mkldnn", object())
    assert not internals.can_pack(kind)
    if kind == torch.bfloat16 and not cpu_has_bf16():
        pytest.skip("this CPU does not multiply bfloat16")
    layer, x = torch.nn.Linear(48, 80), torch.randn(5, 48)
    fast = ReadOnly(layer, kind)
    with torch.no_grad():
        plain = F.linear(x.to(kind), fast.weight, fast.bias).float()
        assert torch.equal(fast(x), plain)
    assert fast.packed is None


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE_BF16", "avx512_core"])
def test_matrix_units_that_are_forbidden(isa, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert internals.has_amx()
    assert wide_type(torch.bfloat16) == torch.bfloat16
    internals.has_amx.cache_clear()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    assert not internals.has_amx()
    assert wide_type(torch.bfloat16) == torch.float32
    internals.has_amx.cache_clear()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    assert internals.has_amx()


@pytest.mark.parametrize("how", ["announced but not granted", "missing"])
def test_matrix_units_that_are_not_there(how, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    if how == "missing":
        monkeypatch.delattr(torch.cpu, "_init_amx")
    else:
        monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    assert not internals.has_amx()
