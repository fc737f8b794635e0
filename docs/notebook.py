# %% [markdown]
# # Your own data, from tables to predictions
#
# This notebook trains a model on two tables, scores it, and predicts rows that training did not see. It was executed by
# `python -m tools.notebook`, from [notebook.py](notebook.py).

# %%
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import Image

import parallel_epochs as pe
from parallel_epochs.scripts.report.figures import overlay, save
from parallel_epochs.scripts.report.runs import read_run

# %% [markdown]
# A shop sells 600 products of four kinds. A row of the second table says that two products were bought together, which
# happens more often within a kind. The kind of each product is to be predicted from its price, its colour, its name and
# the products that it was bought with. Two of three products have a known kind.

# %%
rng = np.random.default_rng(0)
kinds = ["garden", "kitchen", "music", "sports"]
words = ["red", "green", "small", "large", "classic", "new", "light", "deluxe"]
kind = rng.integers(4, size=600)
products = pd.DataFrame(
    {
        "id": [f"P{number}" for number in range(600)],
        "price": np.exp(rng.normal(2 + 0.3 * kind, 1)).round(2),
        "colour": rng.choice(["black", "white", "blue"], 600),
        "name": [" ".join(rng.choice(words[one : one + 5], 3)) for one in kind],
        "kind": np.where(rng.random(600) < 2 / 3, np.array(kinds)[kind], ""),
    }
)
first, second = rng.integers(600, size=(2, 20_000))
together = rng.random(20_000) < np.where(kind[first] == kind[second], 0.3, 0.1)
ids = products["id"].to_numpy()
bought = pd.DataFrame({"source": ids[first[together]], "target": ids[second[together]]})
products.head()

# %%
keys = {
    "data.nodes.features": ["price"],
    "data.nodes.log1p": ["price"],
    "data.nodes.standardize": True,
    "data.nodes.categories": ["colour"],
    "data.nodes.text": ["name"],
    "data.nodes.label": "kind",
}
result = pe.train(
    (products, bought), num_layers=3, epochs=20, eval_every=5, folder="runs/shop", **keys
)
result.scores

# %% [markdown]
# The figures of the report: the loss and the metric of the validation against steps, passes over the graph, and time.

# %%
figure, _ = overlay([read_run(result.folder)])
save(figure, Path("curves.png"))
Image("curves.png")

# %% [markdown]
# Probabilities of each kind, for products without one. The columns are in the order of the names of the classes.

# %%
probabilities = result.model.predict().numpy()
unknown = (products["kind"] == "").to_numpy()
predicted = np.array(kinds)[probabilities.argmax(1)]
right = predicted[unknown] == np.array(kinds)[kind[unknown]]
print(f"right for {right.mean():.1%} of {unknown.sum()} products without a kind")

# %% [markdown]
# A new product, with what it was bought with. Prices, words and colours are read as in training.

# %%
new = pd.DataFrame(
    {"id": ["new"], "price": [12.5], "colour": ["blue"], "name": ["classic new light"]}
)
partners = pd.DataFrame({"source": "new", "target": products["id"][kind == 2][:5]})
later = result.model.predict((pd.concat([products, new]), pd.concat([bought, partners])))
dict(zip(kinds, later[-1].numpy().round(3).tolist()))

# %% [markdown]
# One file holds the model without the data. Whoever opens it can predict their own tables: here the same, with the same
# result.

# %%
result.model.export("shop.pe")
model = pe.load("shop.pe")
kinds[
    model.predict((pd.concat([products, new]), pd.concat([bought, partners])))[-1].argmax().item()
]
