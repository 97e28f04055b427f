"""Whether the runtimes still answer: a device may be lost long after the start."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import numpy as np

from runtimes.base import Inputs, InvalidInputs, Runtime
from service.http.errors import ApiError

logger = logging.getLogger(__name__)


class Monitored:
    """A runtime that knows how its last prediction ended.

    Args:
        runtime: the runtime.
        probe: inputs that ask whether it answers.

    Attributes:
        failed: whether the last prediction failed through no fault of its inputs.
    """

    def __init__(self, runtime: Runtime, probe: Inputs) -> None:
        self._runtime = runtime
        self._probe = probe
        self._began: float | None = None
        self.failed = False

    @property
    def name(self) -> str:
        """See `Runtime.name`."""
        return self._runtime.name

    @property
    def precision(self) -> str:
        """See `Runtime.precision`."""
        return self._runtime.precision

    @property
    def busy_s(self) -> float:
        """Seconds since the running prediction began; 0 when none is running."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def predict(self, inputs: Inputs) -> np.ndarray:
        """See `Runtime.predict`.

        Raises:
            ApiError: 422 invalid_inputs; 503 runtime_failed, when the inputs were right: also
                for logits that are no numbers, as a faulty device gives.
        """
        self._began = time.monotonic()
        try:
            logits = self._runtime.predict(inputs)
            if not np.isfinite(logits).all():
                raise ArithmeticError("the logits are not finite")
        except InvalidInputs as error:
            raise ApiError(422, "invalid_inputs", f"The {error}.") from error
        except Exception as error:  # engines share no base class of their errors
            self.failed = True
            logger.exception("The runtime %s has failed", self.name)
            message = "The model's runtime has failed; another host may answer."
            raise ApiError(503, "runtime_failed", message, headers={"retry-after": "5"}) from error
        finally:
            self._began = None
        self.failed = False
        return logits

    def check(self) -> None:
        """Predict the probe.

        Raises:
            ApiError: see `predict`.
        """
        self.predict(self._probe)


class Readiness:
    """Asks runtimes whether they answer, without standing in the way of predictions.

    Args:
        runtimes: gives all of them, which may be others each time.
        executor: where they predict, one at a time.
        timeout_s: seconds after which a prediction counts as stuck.
    """

    def __init__(
        self,
        runtimes: Callable[[], Sequence[Monitored]],
        executor: Executor,
        *,
        timeout_s: float,
    ) -> None:
        self._runtimes = runtimes
        self._executor = executor
        self._timeout_s = timeout_s
        self._asking: asyncio.Task[bool] | None = None

    async def ready(self) -> bool:
        """Whether all of them answer.

        While one of them predicts for a request, the last outcomes are the answer.
        """
        # One question at a time, however many ask: a device that hangs never answers any.
        if self._asking is None or self._asking.done():
            runtimes = self._runtimes()
            busy_s = max((runtime.busy_s for runtime in runtimes), default=0.0)
            if busy_s > 0:
                stuck = busy_s > self._timeout_s
                return not stuck and not any(runtime.failed for runtime in runtimes)
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=self._timeout_s)
        return bool(done) and self._asking.result()

    async def _ask(self) -> bool:
        loop = asyncio.get_running_loop()
        for runtime in self._runtimes():
            try:
                await loop.run_in_executor(self._executor, runtime.check)
            except ApiError:
                return False
        return True
