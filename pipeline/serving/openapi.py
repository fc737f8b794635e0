"""The description of a service in OpenAPI 3.1, made from the run."""

from typing import Any

from parallel_epochs.pipeline.serving.answers import Answers
from parallel_epochs.pipeline.serving.limits import Limits

ID = {"type": ["string", "integer"]}
COUNT = {"type": "integer", "minimum": 1, "default": 10}


def describe(answers: Answers, limits: Limits) -> dict[str, Any]:
    """Describe the routes, what each takes, and its limits."""
    ids = {"type": "array", "items": ID, "minItems": 1, "maxItems": limits.max_rows}
    triples = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "array", "items": ID, "minItems": 3, "maxItems": 3},
        "description": '[head, relation, tail]; a question has "?" in place of the head or the tail',
    }
    paths: dict[str, Any] = {}
    if answers.predicts_links:
        pairs = {
            "type": "array",
            "minItems": 1,
            "maxItems": limits.max_rows,
            "items": {"type": "array", "items": ID, "minItems": 2, "maxItems": 2},
        }
        paths["/predict"] = _post("Probabilities of links", {"pairs": pairs}, ["pairs"])
    else:
        known: dict[str, Any] = {"ids": ids}
        if not answers.learns_vectors:
            known["columns"] = {"enum": ["all", "class", "top3"], "default": "all"}
        paths["/predict"] = _post("Predictions or vectors of known rows", known, ["ids"])
        if answers.columns:
            cell = {"type": ["string", "number", "boolean", "null"]}
            new = {
                name: {
                    "type": "array",
                    "items": _object(
                        {column: cell | told for column, told in columns.items()}, list(columns)
                    ),
                }
                for name, columns in answers.columns.items()
            }
            content = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]
            content["schema"] = {"oneOf": [content["schema"], _object(new, ["rows"])]}
    if answers.learns_vectors or answers.predicts_links:
        paths["/top"] = _post(
            "The likeliest targets, or the nearest vectors",
            {
                "ids": ids,
                "k": COUNT,
                "candidates": ids,
                "filtered": {"type": "boolean", "default": True},
            },
            ["ids"],
        )
    if answers.trainer == "knowledge":
        paths["/top"]["post"]["requestBody"]["content"]["application/json"]["schema"] = {
            "oneOf": [
                paths["/top"]["post"]["requestBody"]["content"]["application/json"]["schema"],
                _object(
                    {
                        "triples": triples,
                        "k": COUNT,
                        "filtered": {"type": "boolean", "default": True},
                    },
                    ["triples"],
                ),
            ]
        }
    if not answers.learns_vectors:
        paths["/explain"] = _post("Why a row is predicted so", {"id": ID, "top": COUNT}, ["id"])
    for route, what in (
        ("/health", "Whether the service answers"),
        ("/metrics", "Numbers for Prometheus"),
        ("/schema", "This description"),
    ):
        paths[route] = {"get": {"summary": what, "responses": {"200": {"description": what}}}}
    paths["/reload"] = {
        "post": {"summary": "Open the run anew", "responses": {"200": {"description": "done"}}}
    }
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": answers.folder, "version": "1"},
        "paths": paths,
        "x-limits": {
            name: value for name, value in vars(limits).items() if name not in ("token", "hosts")
        },
    }
    if limits.token is not None:
        found |= {
            "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
            "security": [{"token": []}],
        }
    return found


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _post(what: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Describe a route that takes JSON and answers with rows."""
    rows = _object({"rows": {"type": "array", "items": {"type": "object"}}}, ["rows"])
    error = _object({"error": {"type": "string"}}, ["error"])
    return {
        "post": {
            "summary": what,
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _object(properties, required)}},
            },
            "responses": {
                "200": {"description": "rows", "content": {"application/json": {"schema": rows}}},
                **{
                    status: {"description": why, "content": {"application/json": {"schema": error}}}
                    for status, why in (
                        ("400", "The request is wrong."),
                        ("503", "Too much is asked for."),
                    )
                },
            },
        }
    }
