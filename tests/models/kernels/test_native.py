"""How C++ is compiled and loaded, and the kernels compiled for processors with other vectors than this one's."""

import ctypes
import os
import platform
import re
import shutil
import subprocess

import pytest
import torch

from parallel_epochs.models.aggregate import AGGREGATIONS, aggregate, backend, cpu
from parallel_epochs.models.embedding import layout, skipgram
from parallel_epochs.models.kernels import native, norm
from parallel_epochs.models.kernels.native import NativeLibrary
from parallel_epochs.models.messages import attention_ops, cpu as messages, gated
from parallel_epochs.models.messages.attention import SCORES
from parallel_epochs.pipeline.graph import walks
from tests.helpers.running import ROOT
from tests.models.aggregate.test_fused import check, graph, off_the_bounds
from tests.models.messages import test_attention
from tests.models.messages.test_fused import WALKS, check_hubs

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"
)


def test_no_compiler(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    library = NativeLibrary("fused aggregation", cpu.LIBRARY.source, otherwise="the reference runs")
    monkeypatch.setattr(cpu, "LIBRARY", library)
    edge_index, inputs, _ = graph(10, 10, 20)
    assert "no C++ compiler 'no-such-compiler'" in backend(inputs["x"], edge_index)
    assert "no-such-compiler" in caplog.text
    expected = aggregate(inputs["x"], edge_index, kernel="reference")
    assert torch.equal(aggregate(inputs["x"], edge_index), expected)


STRUCTURES = (
    (cpu.AggregationProblem, "models/aggregate/problem.h"),
    (norm.NormProblem, "models/kernels/norm.h"),
    (gated.GatedProblem, "models/messages/gated.h"),
    (attention_ops.AttentionProblem, "models/messages/attention.h"),
    (messages.Operand, "models/messages/problem.h"),
    (messages.MessageProblem, "models/messages/problem.h"),
    (skipgram.SkipGramProblem, "models/embedding/skipgram.h"),
    (layout.LayoutProblem, "models/embedding/layout.h"),
    (walks.WalkProblem, "pipeline/graph/walks.cpp"),
)


# One compilation cannot read files that use the same name twice.
@pytest.mark.parametrize(
    "files", [r"models/messages/(?!gated)", r"aggregate|gated|norm|embedding|walks"]
)
def test_fields_lie_where_the_compiler_puts_them(files, tmp_path):
    """And there are no others: the struct of C++ with one field more is longer."""
    lines = ["#include <cstddef>"]
    for structure, header in (pair for pair in STRUCTURES if re.search(files, pair[1])):
        name, sizes = (
            structure.__name__,
            {field: getattr(structure, field) for field, _ in structure._fields_},
        )
        lines += [
            f'#include "{ROOT / header}"',
            f"static_assert(sizeof({name}) == {ctypes.sizeof(structure)});",
            *(
                f"static_assert(offsetof({name}, {field}) == {at.offset} && sizeof({name}::{field}) == {at.size});"
                for field, at in sizes.items()
            ),
        ]
    (tmp_path / "check.cpp").write_text("\n".join(lines))
    subprocess.run(
        [
            os.environ.get("CXX", "c++"),
            "-std=c++20",
            "-fsyntax-only",
            "-fopenmp",
            "-w",
            "check.cpp",
        ],
        cwd=tmp_path,
        check=True,
    )


def test_a_changed_header_is_another_library(tmp_path):
    (tmp_path / "a.cpp").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "sub/c.h"\n')
    (tmp_path / "sub").mkdir()
    paths = []
    for text in ("int c = 1;", "int c = 2;"):
        (tmp_path / "sub" / "c.h").write_text(text)
        paths.append(NativeLibrary("a", tmp_path / "a.cpp", otherwise="")._path)
    assert paths[0] != paths[1]


needs_x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="has the portable kernels alone"
)
LEVELS = ["portable", "avx2", "avx512"]


def under(level: str, folder, monkeypatch) -> tuple[str, str]:
    """What simd.h is under a level, "" for none, and where the library is kept that is compiled so."""
    monkeypatch.setenv(native.SIMD_VARIABLE, level)
    source = folder / "name.cpp"
    source.write_text(f'#include "{norm.LIBRARY.source.with_name("simd.h")}"\nSIMD_NAME\n')
    library = NativeLibrary("name", source, otherwise="")
    text = subprocess.run(
        [os.environ.get("CXX", "c++"), *library.flags, "-E", "-P", source],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return text.splitlines()[-1].strip('"'), library._path.parent.name


@needs_x86
def test_a_level_caps_the_vectors_and_one_line_says_so(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", native.log.name)
    has, own_key = under("", tmp_path, monkeypatch)
    assert has == native.find_simd() and not caplog.messages
    for level in LEVELS[: LEVELS.index(has) + 1]:
        native._say_level.cache_clear()
        caplog.clear()
        name, key = under(level, tmp_path, monkeypatch)
        assert name == level and (key == own_key) == (level == "avx512")
        assert caplog.messages == [
            f"kernels: {level}, as PARALLEL_EPOCHS_SIMD={level} and this processor has {has}"
        ]


@pytest.mark.parametrize(
    "has, flags",
    [
        ("avx512", "flags : avx512dq avx512f sse2 avx2 fma"),
        ("avx2", "flags : sse2 avx2 fma avx512f"),
        ("portable", "flags : sse2 avx2"),
        ("portable", ""),
    ],
)
def test_a_level_above_the_processor_is_refused(has, flags, monkeypatch):
    monkeypatch.setattr(native, "_cpu_flags", lambda: flags)
    monkeypatch.delenv(native.SIMD_VARIABLE, raising=False)
    assert native.choose_simd() == has
    for level in LEVELS:
        monkeypatch.setenv(native.SIMD_VARIABLE, level)
        if LEVELS.index(level) <= LEVELS.index(has):
            assert native.choose_simd() == level
            continue
        choices = " or ".join(LEVELS[: LEVELS.index(has) + 1])
        with pytest.raises(
            ValueError,
            match=f"^PARALLEL_EPOCHS_SIMD={level} needs a processor with {level}, and this "
            f"one has {has}; choose {choices}, or unset it$",
        ):
            native.choose_simd()


@pytest.fixture(params=LEVELS)
def width(request, monkeypatch):
    """A level, under which the aggregation, the norm, the messages and attention are compiled."""
    if LEVELS.index(request.param) > LEVELS.index(native.find_simd()):
        pytest.skip(f"this processor has no {request.param}")
    monkeypatch.setenv(native.SIMD_VARIABLE, request.param)
    for module in (cpu, norm, messages, attention_ops):
        library = module.LIBRARY
        monkeypatch.setattr(
            module, "LIBRARY", NativeLibrary(library.name, library.source, otherwise="")
        )
        assert module.LIBRARY.get() is not None, module.LIBRARY.missing()
    return request.param


@pytest.mark.slow
@needs_x86
def test_other_widths_of_vectors(width):
    assert cpu.LIBRARY.find_simd() == width
    edge_index, inputs, _ = graph(40, 30, 600)
    assert backend(inputs["x"], edge_index) == f"fused-cpu ({width})"
    for aggr in AGGREGATIONS:
        for features in (None, 3, 8, "encoded"):
            edge_index, inputs, grad = graph(
                40,
                30,
                600,
                channels=21,
                hub=150,
                encoded=features == "encoded",
                edge_dim=features if isinstance(features, int) else None,
            )
            if aggr.startswith("power"):
                inputs = {
                    name: value if value is None else value.abs() for name, value in inputs.items()
                }
                inputs["x"] += 0.125
            inputs |= dict(t=torch.tensor([1.3]), p=torch.tensor([1.7]))
            if aggr.startswith("power"):
                grad = off_the_bounds(edge_index, inputs, grad)
            check(edge_index, inputs, grad, aggr=aggr)


@pytest.mark.slow
@needs_x86
def test_other_widths_of_messages(width):
    assert messages.LIBRARY.find_simd() == width
    for left, right in (((21,), ()), ((64,), (64,)), ((4, 16), (4, 1))):
        check_hubs(left, right, ("u_mul_e", "copy_u"), ("sum",))
        check_hubs(left, right, ("v_div_u", "e_sub_u"), WALKS)


@pytest.mark.slow
@needs_x86
def test_other_widths_of_attention(width):
    for score in SCORES:
        for heads in (3, 17):
            test_attention.test_hubs_and_sizes_of_every_kind(score, heads, 5)


@pytest.fixture(scope="module")
def small_library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "answer.cpp", "-o", "a.so"], cwd=folder, check=True
    )
    return folder / "a.so"


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """Asks a small library of its own cache for its number; says whether it was compiled, and what was warned of."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "cache"))
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')

    def ask(caplog) -> tuple[int | None, bool, list[str]]:
        caplog.clear()
        with caplog.at_level("INFO"):
            loaded = NativeLibrary("answer", source, otherwise="another answers").get()
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        return loaded and loaded.answer(), "compiled with" in caplog.text, warned

    ask.path = NativeLibrary("answer", source, otherwise="")._path
    ask.source = source
    return ask


@pytest.fixture
def quick(small_library, monkeypatch):
    """A compiler that is done at once."""
    monkeypatch.setattr(
        NativeLibrary, "_run_compiler", lambda self, folder: shutil.copy(small_library, folder)
    )


def rewrite(path, content: bytes) -> None:
    path.unlink()  # what is loaded is mapped into memory
    path.write_bytes(content)


def test_only_what_was_compiled_here_is_loaded(answer, quick, caplog):
    assert answer(caplog) == (42, True, []) and answer(caplog) == (42, False, [])
    path, record = answer.path, answer.path.with_suffix(".sha256")
    content = path.read_bytes()
    altered = content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]
    for hurt in (
        lambda: rewrite(path, content[: len(content) // 2]),
        lambda: rewrite(path, altered),
        lambda: rewrite(path, b""),
        lambda: path.chmod(0o777),
        lambda: path.parent.chmod(0o770),
        lambda: record.write_text("0" * 64),
    ):
        hurt()
        assert answer(caplog) == (
            42,
            True,
            [f"answer: {path} was changed, or others may write to it; compiling it again"],
        )
        assert answer(caplog) == (42, False, [])
    record.unlink()  # as versions of before left it
    assert answer(caplog) == (42, True, [])
    assert {entry.name for entry in path.parents[1].iterdir()} == {"lock", path.parent.name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_nothing_of_another_user_is_loaded(at, answer, quick, caplog):
    answer(caplog)
    foreign = [answer.path, *answer.path.parents][at]
    os.chown(foreign, 65534, 65534)
    number, compiled, warned = answer(caplog)
    assert number == 42 and compiled and len(warned) == 1
    assert ("was changed, or" if at < 2 else "others may write to") in warned[0]
    assert answer(caplog)[1] == (at >= 2)  # in a folder of another's nothing is kept either


def test_a_cache_that_everybody_may_write_to_is_used_where_only_owners_may_rename(
    answer, quick, caplog
):
    cache = answer.path.parents[2]
    cache.chmod(0o777)
    assert answer(caplog)[1:] == (
        True,
        [
            f"answer: others may write to {cache}, so no library there is loaded and every process compiles its own. Set "
            "TORCH_EXTENSIONS_DIR to a folder that only you can write to"
        ],
    )
    cache.chmod(0o1777)
    assert answer(caplog)[1:] == (True, []) and answer(caplog)[1:] == (False, [])
