"""GENConv's aggregation: messages, weights and sum in one call."""

from models.aggregate.reference import AGGREGATIONS, aggregate

__all__ = ["AGGREGATIONS", "aggregate"]
