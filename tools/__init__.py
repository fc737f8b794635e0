"""Commands that only developers run, from the checkout. The wheel has none of them."""
