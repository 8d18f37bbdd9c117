"""Errors as replies: a status and one line of JSON."""

from __future__ import annotations

import sys

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from clients.store import (
    ConflictingAnswerError,
    DuelExpiredError,
    UndoError,
    UnknownDuelError,
)
from clients.validation import first_error
from fldb_flower.errors import DataError, FldbError, OutputError, SecureError, one_line

_STATUS = {
    UnknownDuelError: 404,
    ConflictingAnswerError: 409,
    UndoError: 409,
    DuelExpiredError: 410,
    DataError: 422,
    SecureError: 409,
    OutputError: 503,
}


def add_handlers(app: FastAPI) -> None:
    """Reply to every exception with one line of JSON."""
    app.add_exception_handler(FldbError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_refusal)
    app.add_exception_handler(Exception, _on_bug)


def problem(status: int, detail: object, **headers: str) -> JSONResponse:
    """Return the reply for an error."""
    return JSONResponse({"detail": one_line(detail)}, status, headers)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


async def _on_error(_request: Request, error: Exception) -> JSONResponse:
    return problem(status_of(error), error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first, as_json = error.errors()[0], "send JSON, as Content-Type: application/json"
    if first["type"] == "json_invalid":
        return problem(422, f"the body is not JSON: {error.__cause__}")
    if first["loc"] == ("body",) and first["type"] == "missing":
        return problem(422, f"the body is required: {as_json}")
    if isinstance(first["input"], bytes):
        kind = request.headers.get("content-type")
        sent = "no Content-Type" if kind is None else f"Content-Type: {kind[:100]}"
        return problem(422, f"the body has {sent}: {as_json}")
    return problem(422, first_error(error.errors(), "the body"))


async def _on_refusal(request: Request, error: Exception) -> JSONResponse:
    """Reply to requests that reach no endpoint, with more detail than the framework's."""
    assert isinstance(error, HTTPException)
    detail, headers, path = error.detail, dict(error.headers or {}), request.url.path[:200]
    if error.status_code == 400 and error.__cause__ is not None:
        detail = f"the body cannot be read: {_why_unreadable(error.__cause__)}"
    elif error.status_code == 404 and detail == "Not Found":
        described = ": /docs describes the endpoints" if request.app.openapi_url else ""
        detail = f"there is nothing at {path}{described}"
    elif error.status_code == 405:
        allowed = headers.get("Allow") or headers.get("allow") or "GET"
        detail = f"{request.method} is not allowed at {path}: use {allowed}"
    return problem(error.status_code, detail, **headers)


def _why_unreadable(cause: BaseException) -> str:
    if isinstance(cause, UnicodeDecodeError):
        return f"byte {cause.start} is 0x{cause.object[cause.start]:02x}, which is not UTF-8"
    if isinstance(cause, RecursionError):
        return "its JSON is nested too deeply"
    if isinstance(cause, ValueError):  # Python limits the length of integers
        return f"it contains an integer of more than {sys.get_int_max_str_digits()} digits"
    return str(cause)


async def _on_bug(_request: Request, _error: Exception) -> JSONResponse:
    return problem(500, "internal error: see the output of the service")
