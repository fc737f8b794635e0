"""Features of texts: TF-IDF of their words, of pieces of words, of tags or of ids, brought to as many columns as are
wanted by a truncated singular value decomposition or by hashes.
"""

from functools import cached_property

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from parallel_epochs.models.kernels.hash import GOLDEN, mix
from parallel_epochs.pipeline.run.errors import DamagedFile

# Stands between two ids.
ID_SEPARATOR = "\x1f"
# Terms are told apart by so many hashes; of a million terms one in a hundred thousand pairs shares one.
NUM_HASHES = 1 << 20
# Bounds on the decomposition of a column of texts: terms, texts, and terms of all of these texts together.
MAX_TERMS, MAX_TEXTS, MAX_CELLS = 1 << 15, 1 << 16, 1 << 25
# Bounds on the matrix of TF-IDF of all texts: columns, and numbers.
NUM_TERMS, MOST_NUMBERS = 1 << 17, 1 << 25
# Ids of neighbours are terms of so many nodes at most, if nothing else asks for them.
MOST_WITH_IDS = 300_000
# Iterations of the decomposition.
NUM_ITERATIONS = 4


class TextFeatures:
    """TF-IDF of one column of text, computed in two passes over blocks of it: :meth:`count`, then :meth:`transform`.

    Every term is told by a hash among many, so that its frequency is its own. If there are more terms than columns,
    half of the columns are those of the terms in most texts; the others are shared by all other terms, each with a
    column and a sign at random, which keeps the products of rows as they are on average.

    With a decomposition (Deerwester and others, Indexing by latent semantic analysis, 1990), :meth:`fit` stands between
    the two passes. The columns are then those of the largest singular values. A column of texts that has no more
    terms in two texts than it may have columns is hashed all the same.

    Args:
        kind: "words", "chars" (pieces of words), "names" (words of a column of "chars"), "tags" or "ids".
        place: of its column of text in the database.
        channels: columns, at most; terms that are fewer have one each. 0: the texts become no features.
        is_decomposed: whether :meth:`fit` may be called.

    Attributes:
        kind, place: as given.
        vectors: singular vectors of the terms that are read, scaled, float16 [num_terms, channels]; empty without them.
    """

    def __init__(
        self,
        kind: str,
        channels: int,
        *,
        place: int = 0,
        is_decomposed: bool = False,
    ):
        kinds: dict[str, dict] = {
            "words": {"sublinear_tf": True},
            "names": {},
            "chars": {"analyzer": "char_wb", "ngram_range": (2, 4)},
            "tags": {"analyzer": _split_tags},
            "ids": {"analyzer": _split_ids},
        }
        options = kinds[kind]
        self._tfidf = TfidfTransformer(sublinear_tf=options.pop("sublinear_tf", False))
        self._hash = HashingVectorizer(
            n_features=NUM_HASHES, alternate_sign=False, norm=None, dtype=np.float64, **options
        )
        self.kind, self.place, self._channels, self._is_decomposed = (
            kind,
            place,
            channels,
            is_decomposed,
        )
        self.vectors = np.zeros((0, 0), np.float16)
        self._num_texts, self._frequency = 0, np.zeros(NUM_HASHES, np.int64)
        self._projection: sp.csr_array | None = None

    def count(self, texts: list[str]) -> None:
        """Count in how many texts each term is."""
        terms = self._hash.transform(texts)
        self._num_texts += len(texts)
        self._frequency += np.bincount(terms.indices, minlength=NUM_HASHES)

    def counted(self) -> tuple[int, np.ndarray, np.ndarray]:
        """Return how many texts were counted, the terms of them, and in how many texts each is, for :meth:`restore`."""
        terms = np.flatnonzero(self._frequency)
        return self._num_texts, terms, self._frequency[terms]

    def restore(
        self, num_texts: int, terms: np.ndarray, frequency: np.ndarray, vectors: np.ndarray
    ) -> None:
        """Go on as if other texts had been counted and fitted, of which :meth:`counted` told.

        Args:
            vectors: those of the other texts; empty without them.
        """
        if (
            len(terms) != len(frequency)
            or len(terms)
            and not 0 <= terms.min() <= terms.max() < NUM_HASHES
        ):
            raise DamagedFile(
                "what the run learned of its tables is damaged: the terms of its texts are none"
            )
        self._num_texts = num_texts
        self._frequency[terms] = frequency
        if vectors.size:
            if len(vectors) != len(self.terms):
                raise DamagedFile(
                    "what the run learned of its tables is damaged: vectors of terms are of other terms"
                )
            self.vectors = vectors

    @cached_property
    def terms(self) -> np.ndarray:
        """The terms that a decomposition reads, ascending: the most frequent of those in two texts or more. Empty where
        these are no more than the columns, when all texts have been counted.
        """
        terms = np.flatnonzero(self._frequency > 1)
        if not self._is_decomposed or len(terms) <= self._channels:
            return terms[:0]
        return np.sort(terms[np.argsort(-self._frequency[terms], kind="stable")[:MAX_TERMS]])

    @property
    def most_texts(self) -> int:
        """How many texts a decomposition may read, when all have been counted; 0 without one."""
        of_text = self._frequency[self.terms].sum() / max(self._num_texts, 1)
        return int(min(MAX_TEXTS, MAX_CELLS / of_text)) if len(self.terms) else 0

    def fit(self, texts: sp.csr_array, seed: int) -> None:
        """Decompose TF-IDF of some texts.

        Args:
            texts: TF-IDF of :attr:`terms` [num_texts, num_terms].
            seed: of the vectors that the decomposition begins with.
        """
        channels = min(self._channels, *texts.shape)
        with threadpool_limits(1, "blas"):  # the last bits depend on the number of threads
            _, sizes, vectors = randomized_svd(
                texts, channels, n_iter=NUM_ITERATIONS, random_state=seed
            )
        scale = np.sqrt(channels * texts.shape[0] / np.square(sizes).sum())
        self.vectors = np.ascontiguousarray(vectors.T * scale, np.float16)

    @property
    def channels(self) -> int:
        """Columns, when all texts have been counted."""
        if self.vectors.size:
            return self.vectors.shape[1]
        return min(self._channels, max(int(np.count_nonzero(self._frequency)), 1))

    def weigh(self, texts: list[str]) -> sp.csr_matrix:
        """Compute TF-IDF of every hash [num_texts, NUM_HASHES], rows of length 1, when all texts have been counted."""
        if not hasattr(self._tfidf, "idf_"):  # as TfidfTransformer.fit sets it
            self._tfidf.idf_ = np.log((1 + self._num_texts) / (1 + self._frequency)) + 1
        return self._tfidf.transform(self._hash.transform(texts))

    def transform(self, texts: list[str]) -> np.ndarray:
        """Compute the features of texts [num_texts, channels], float32.

        The mean square of a row is 1, as that of standardised numbers, but for terms that share a column; it is 0
        without any term. With a decomposition, it is 1 on average over the rows that were fitted.
        """
        if self.vectors.size:
            return np.asarray(
                self.weigh(texts)[:, self.terms] @ self.vectors.astype(np.float64), np.float32
            )
        if self._projection is None:
            self._projection = _project(self._frequency, self.channels)
        return (self.weigh(texts) @ self._projection).toarray().astype(np.float32) * np.float32(
            self.channels**0.5
        )


def _split_tags(text: str) -> list[str]:
    """Split a text into tags. The terms are the tags, and the part of each before its first ::."""
    tags = [tag.strip() for tag in text.lower().split("|")]
    return [tag for tag in tags if tag] + [tag.partition("::")[0] for tag in tags if "::" in tag]


def _split_ids(text: str) -> list[str]:
    return text.split(ID_SEPARATOR) if text else []


def _project(frequency: np.ndarray, channels: int) -> sp.csr_array:
    """Choose a column and a sign for every hash that is used."""
    hashes = np.flatnonzero(frequency)
    hashes = hashes[np.argsort(-frequency[hashes], kind="stable")]
    own = len(hashes) if len(hashes) <= channels else channels // 2
    bits = mix(hashes.astype(np.uint64) + GOLDEN)
    column = own + (bits % np.uint64(max(channels - own, 1))).astype(np.int64)
    sign = np.where(bits >> np.uint64(63), 1.0, -1.0)
    column[:own], sign[:own] = np.arange(own), 1
    return sp.csr_array((sign, (hashes, column)), shape=(NUM_HASHES, channels))
