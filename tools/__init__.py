"""Commands that only developers run, as `python -m tools.NAME` from the checkout. The wheel has none of them."""
