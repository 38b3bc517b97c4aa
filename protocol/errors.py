"""Every error a caller can meet, as one tree; views and workers map it once, nobody else invents codes.

    ShoalError
    ├── InvalidInput              400 INVALID_INPUT
    │   └── InputTooLong          400 INPUT_TOO_LONG
    ├── BodyTooLarge              413 INPUT_TOO_LONG
    ├── Unauthorized              401 UNAUTHORIZED
    ├── Forbidden                 403 FORBIDDEN
    ├── RouteNotFound             404 NOT_FOUND
    ├── ModelNotFound             404 MODEL_NOT_FOUND
    ├── TaskNotFound              404 TASK_NOT_FOUND
    ├── MethodNotAllowed          405 METHOD_NOT_ALLOWED
    ├── TaskFinished              409 TASK_FINISHED
    ├── Cancelled                 409 CANCELLED
    ├── TooManyRequests           429 RATE_LIMITED        retryable
    ├── InferenceError            500 INFERENCE_ERROR
    │   ├── NonFiniteOutput       500 NON_FINITE_OUTPUT
    │   └── WorkerLost            500 WORKER_LOST
    ├── ModelLoadFailed           502 MODEL_LOAD_FAILED
    ├── QueueFull                 503 QUEUE_FULL          retryable
    ├── QueueUnavailable          503 QUEUE_UNAVAILABLE   retryable
    ├── Provisioning              503 PROVISIONING        retryable
    ├── ModelLoading              503 MODEL_LOADING       retryable
    ├── ResourceExhausted         503 RESOURCE_EXHAUSTED  retryable
    ├── TransportFailure          503 transport_failure   retryable
    ├── Expired                   504 EXPIRED
    └── GatewayTimeout            504 GATEWAY_TIMEOUT     retryable

Codes and their retry meaning follow the published SIE SDK, so that its client retries what may pass.
"""

from typing import Any, ClassVar


class ShoalError(Exception):
    """An error with a code, an HTTP status and, if trying again may help, the seconds to wait before it."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    status: ClassVar[int] = 500
    default_retry_after: ClassVar[float | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = self.default_retry_after if retry_after is None else retry_after
        self.extra = extra or {}

    def to_wire(self) -> dict[str, Any]:
        """The error as plain data; the inverse of `from_wire`."""
        wire: dict[str, Any] = {**self.extra, "code": self.code, "message": self.message}
        if self.param is not None:
            wire["param"] = self.param
        if self.retry_after is not None:
            wire["retry_after"] = self.retry_after
        return wire


class InvalidInput(ShoalError):
    code, status = "INVALID_INPUT", 400


class InputTooLong(InvalidInput):
    code, status = "INPUT_TOO_LONG", 400


class BodyTooLarge(ShoalError):
    code, status = "INPUT_TOO_LONG", 413


class Unauthorized(ShoalError):
    code, status = "UNAUTHORIZED", 401


class Forbidden(ShoalError):
    code, status = "FORBIDDEN", 403


class RouteNotFound(ShoalError):
    code, status = "NOT_FOUND", 404


class ModelNotFound(ShoalError):
    code, status = "MODEL_NOT_FOUND", 404


class TaskNotFound(ShoalError):
    code, status = "TASK_NOT_FOUND", 404


class MethodNotAllowed(ShoalError):
    code, status = "METHOD_NOT_ALLOWED", 405


class TaskFinished(ShoalError):
    code, status = "TASK_FINISHED", 409


class Cancelled(ShoalError):
    code, status = "CANCELLED", 409


class TooManyRequests(ShoalError):
    code, status, default_retry_after = "RATE_LIMITED", 429, 1.0


class InferenceError(ShoalError):
    code, status = "INFERENCE_ERROR", 500


class NonFiniteOutput(InferenceError):
    code, status = "NON_FINITE_OUTPUT", 500


class WorkerLost(InferenceError):
    code, status = "WORKER_LOST", 500


class ModelLoadFailed(ShoalError):
    code, status = "MODEL_LOAD_FAILED", 502


class QueueFull(ShoalError):
    code, status, default_retry_after = "QUEUE_FULL", 503, 1.0


class QueueUnavailable(ShoalError):
    code, status, default_retry_after = "QUEUE_UNAVAILABLE", 503, 1.0


class Provisioning(ShoalError):
    code, status, default_retry_after = "PROVISIONING", 503, 1.0


class ModelLoading(ShoalError):
    code, status, default_retry_after = "MODEL_LOADING", 503, 0.5


class ResourceExhausted(ShoalError):
    code, status, default_retry_after = "RESOURCE_EXHAUSTED", 503, 2.0


class TransportFailure(ShoalError):
    code, status, default_retry_after = "transport_failure", 503, 0.5


class Expired(ShoalError):
    code, status = "EXPIRED", 504


class GatewayTimeout(ShoalError):
    code, status, default_retry_after = "GATEWAY_TIMEOUT", 504, 1.0


def _tree(root: type[ShoalError]) -> list[type[ShoalError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


# BodyTooLarge shares its code with InputTooLong; it is raised at the door and never crosses the broker.
_BY_CODE = {kind.code: kind for kind in _tree(ShoalError) if kind is not BodyTooLarge}


def from_wire(wire: dict[str, Any]) -> ShoalError:
    """Rebuild the error that `to_wire` described; a code we do not know becomes a plain `ShoalError`."""
    fields = dict(wire)
    kind = _BY_CODE.get(fields.pop("code", ""), ShoalError)
    return kind(
        fields.pop("message", "unknown error"),
        param=fields.pop("param", None),
        retry_after=fields.pop("retry_after", None),
        extra=fields,
    )
