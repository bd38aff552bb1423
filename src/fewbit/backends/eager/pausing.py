# SPDX-License-Identifier: Apache-2.0
"""A forward that stops on its way and goes on later, as often as need be.

Each has a thread of its own, and only one of all threads runs at any time: it is not parallel work, but the only way in
Python to leave somebody's function in the middle and to come back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


class _Dismissed(BaseException):
    """Ends a forward that nobody waits for; no handler of the model's catches it."""


class Forward:
    """A call that can be left in the middle.

    Args:
        function: what is called.

    Attributes:
        at: what it said when it stopped; none before the first stop and after the end.
        out: what it returned, once it is over.
        over: whether it returned.

    >>> def count():
    ...     return [forward.stop(number) for number in range(2)]
    >>> forward = Forward(count)
    >>> forward.advance(), forward.at, forward.advance(), forward.at, forward.advance(), forward.over
    (None, 0, None, 1, None, True)
    """

    def __init__(self, function: Callable[[], Any]):
        self._function = function
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._dismissed = False
        self.at: Any = None
        self.out: Any = None
        self.over = False

    def advance(self) -> None:
        """Run to the next stop or to the end; raises what the function raises."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def stop(self, at: Any) -> None:
        """Called on the way: wait here until somebody lets it advance."""
        self.at = at
        self._back.release()
        self._go.acquire()
        if self._dismissed:
            raise _Dismissed
        self.at = None

    def dismiss(self) -> None:
        """End it where it stands."""
        if self._thread is not None and self._thread.is_alive():
            self._dismissed = True
            self._go.release()
            self._thread.join()

    def _run(self) -> None:
        try:
            with torch.no_grad():  # which is a matter of each thread
                self.out = self._function()
            self.over = True
        except _Dismissed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.at = None
            self._back.release()
