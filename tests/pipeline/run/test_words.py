import pytest

from parallel_epochs.pipeline.run.words import count


@pytest.mark.parametrize("arguments, text", [
    ((1, "edge"), "1 edge"), ((0, "edge"), "0 edges"), ((1200, "edge"), "1,200 edges"),
    ((1, "category", "categories"), "1 category"), ((2, "category", "categories"), "2 categories")])
def test_the_noun_agrees_with_its_number(arguments, text):
    assert count(*arguments) == text
