"""What can be evaluated, in JSON: the attacks with their options."""

import dataclasses
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from robustness.attacks.base import Attack, options
from robustness.spec import ATTACKS
from service.http.auth import access
from service.http.openapi import failures


def routes() -> list[BaseRoute]:
    """The route ``/v1/attacks``."""
    router = APIRouter(dependencies=access())
    described = [describe_attack(name, kind) for name, kind in ATTACKS.items()]

    @router.get("/v1/attacks", response_model=list[dict[str, Any]], responses=failures())
    async def attacks() -> Response:
        """Every attack with its options, budgets, access, titles and references."""
        return JSONResponse(described)

    return router.routes


def describe_attack(name: str, kind: type[Attack]) -> dict[str, Any]:
    """An attack as ``/v1/attacks`` shows it."""
    info = kind.info
    return {
        "name": name,
        "title": info.title,
        "what": info.what,
        "paper": info.paper,
        "references": list(info.references),
        "input": info.input,
        "access": info.access,
        "role": info.role,
        "budget": info.budget,
        "norms": list(info.norms),
        "min_classes": info.min_classes,
        "options": [dataclasses.asdict(option) for option in options(kind)],
    }
