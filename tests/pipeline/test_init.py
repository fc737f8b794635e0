"""`parallel-epochs init`: a folder of tables, a schema, and the two commands that it names."""

import shlex
import sys
from pathlib import Path

import pytest
import yaml

from parallel_epochs.pipeline import init
from tests.helpers.running import shell
from tests.pipeline.data.tables.test_guess import LINES, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    write((folder := tmp_path_factory.mktemp("init")) / "shop", LINES)
    return folder


@pytest.fixture
def shop(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    for path in folder.glob("**/*.yaml"):
        path.unlink()
    return folder / "shop"


def call(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["init", *arguments])
    init.main()


def test_a_schema_is_written_and_never_replaced_unless_told(shop, monkeypatch, capsys):
    call(monkeypatch, "shop", "label=customers.tier")
    assert (
        yaml.safe_load((shop / "schema.yaml").read_text())["nodes"]["customers"]["label"] == "tier"
    )
    assert (
        "data=tables data.schema=shop/schema.yaml hydra.run.dir=runs/shop"
        in capsys.readouterr().out
    )
    with (shop / "schema.yaml").open("a") as file:
        file.write("# mine\n")
    with pytest.raises(
        SystemExit, match="error: output=shop/schema.yaml exists, .* or overwrite=true"
    ):
        call(monkeypatch, "shop", "label=orders.gift")
    call(monkeypatch, "shop", "label=orders.gift", "overwrite=true")
    assert "orders" in yaml.safe_load((shop / "schema.yaml").read_text())["nodes"]
    call(monkeypatch, "shop", "label=none", "output=other.yaml")
    assert "data.folder=shop task=link" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "error: name one folder of tables"),
        (["shop", "more"], "error: name one folder of tables"),
        (
            ["shop", "lable=x"],
            "error: lable is no argument of init; choose among label, output, overwrite",
        ),
        (
            ["shop"],
            "error: which column is to be predicted. Give label=TABLE.COLUMN, as in customers.tier",
        ),
        (["nowhere"], "error: nowhere is not a folder with tables"),
        (["shop", "label=customers.teir"], "error: label=customers.teir is no column to predict"),
        (
            ["shop", "output=nowhere/x.yaml"],
            "error: output=nowhere/x.yaml: the directory nowhere does not exist",
        ),
        (["shop", "output=shop/orders.csv"], "error: output=shop/orders.csv is a file that this"),
    ],
)
def test_wrong_arguments_are_one_line(shop, monkeypatch, arguments, message):
    with pytest.raises(SystemExit, match=message) as error:
        call(monkeypatch, *arguments)
    assert "\n" not in str(error.value)


def test_help_names_the_arguments(monkeypatch, capsys):
    call(monkeypatch, "--help")
    printed = capsys.readouterr().out
    assert all(f"{name}=" in printed for name in init.OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["customers.tier", "orders.gift"])
def test_the_commands_that_it_names_run(tmp_path, label):
    write(tmp_path / "shop", LINES)
    printed = shell("pipeline.init", "shop", f"label={label}", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    commands = [shlex.split(line) for line in printed.stdout.splitlines()[-2:]]
    for program, name, *arguments in commands:
        assert program == "parallel-epochs"
        small = ["train.epochs=2", "model.num_layers=2", "task.base=none"] * (name == "train")
        found = shell(f"pipeline.{name}", *arguments, *small, cwd=tmp_path)
        assert found.returncode == 0, found.stderr
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == len(
        LINES[label.partition(".")[0]]
    )
