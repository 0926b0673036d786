"""The states of a generation as the SDK sees it, and everything that moves it from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto

from inferd.protocol import InvalidRequest


class GenerationState(StrEnum):
    """Stage of a generation. In PREPARING, WAITING and DELIVERING a task is inside ``__anext__``."""

    NEW = auto()  # nothing was sent
    PREPARING = auto()  # the first step was asked for: the context sends what it has buffered
    WAITING = auto()  # a request to start, or for a step, has no answer yet
    DELIVERING = auto()  # a step is being handed out
    RUNNING = auto()  # the runtime generates, and no task asks for a step
    FINISHED = auto()  # every step was handed out; generate.close is still to be sent
    ENDING = auto()  # every step was handed out, and generate.close is on its way
    INTERRUPTED = auto()  # a request failed, was cancelled, or was to end the generation: steps may be lost
    LEAVING = auto()  # the context was used for something else; generate.close is still to be sent
    LEFT = auto()  # the context was used for something else, and generate.close was answered
    CLOSED = auto()  # the generator ended it, or the runtime refused to start it


class GenerationEvent(StrEnum):
    """What happens to a generation."""

    ASK = auto()  # a task asks for a step
    SEND = auto()  # its request goes out
    ANSWER = auto()  # the request was answered
    REFUSE = auto()  # the runtime refused to start
    RETURN = auto()  # the task has its step, or an exception; more steps may come
    FINISH = auto()  # the task has its step, and it was the last
    LEAVE = auto()  # the program uses the context for something else
    RELEASE = auto()  # the program gives the context back, whoever waits for a step
    CLOSE = auto()  # generate.close is sent, if the runtime has the generation
    RELEASED = auto()  # the runtime has nothing of it any more


LEFT_BY: Mapping[GenerationState, GenerationState] = {
    **dict.fromkeys(
        (GenerationState.NEW, GenerationState.RUNNING, GenerationState.INTERRUPTED, GenerationState.LEAVING),
        GenerationState.LEAVING,
    ),
    **{
        state: state
        for state in (GenerationState.FINISHED, GenerationState.ENDING, GenerationState.LEFT, GenerationState.CLOSED)
    },
}
IN_STEP = (GenerationState.PREPARING, GenerationState.WAITING, GenerationState.DELIVERING)
OVERTAKEN = {state: state for state in (GenerationState.LEAVING, GenerationState.LEFT)}
"""Of a task that waits for a step while another one releases the context."""
TRANSITIONS: Mapping[GenerationEvent, Mapping[GenerationState, GenerationState]] = {
    GenerationEvent.ASK: {
        GenerationState.NEW: GenerationState.PREPARING,
        GenerationState.RUNNING: GenerationState.DELIVERING,
        GenerationState.FINISHED: GenerationState.DELIVERING,
        GenerationState.CLOSED: GenerationState.CLOSED,
    },
    GenerationEvent.SEND: {
        GenerationState.PREPARING: GenerationState.WAITING,
        GenerationState.DELIVERING: GenerationState.WAITING,
    },
    GenerationEvent.ANSWER: {GenerationState.WAITING: GenerationState.DELIVERING},
    GenerationEvent.REFUSE: {GenerationState.WAITING: GenerationState.CLOSED, **OVERTAKEN},
    GenerationEvent.RETURN: {
        GenerationState.PREPARING: GenerationState.NEW,
        GenerationState.WAITING: GenerationState.INTERRUPTED,
        GenerationState.DELIVERING: GenerationState.RUNNING,
        GenerationState.CLOSED: GenerationState.CLOSED,
        **OVERTAKEN,
    },
    GenerationEvent.FINISH: {
        GenerationState.DELIVERING: GenerationState.FINISHED,
        GenerationState.CLOSED: GenerationState.CLOSED,
    },
    GenerationEvent.LEAVE: LEFT_BY,
    GenerationEvent.RELEASE: {**LEFT_BY, **dict.fromkeys(IN_STEP, GenerationState.LEAVING)},
    GenerationEvent.CLOSE: {
        **dict.fromkeys(
            (GenerationState.NEW, GenerationState.RUNNING, GenerationState.INTERRUPTED), GenerationState.INTERRUPTED
        ),
        GenerationState.FINISHED: GenerationState.ENDING,
        **{
            state: state
            for state in (GenerationState.ENDING, GenerationState.LEAVING, GenerationState.LEFT, GenerationState.CLOSED)
        },
    },
    GenerationEvent.RELEASED: {
        **dict.fromkeys(
            (GenerationState.ENDING, GenerationState.INTERRUPTED, GenerationState.CLOSED), GenerationState.CLOSED
        ),
        GenerationState.LEAVING: GenerationState.LEFT,
        GenerationState.LEFT: GenerationState.LEFT,
    },
}
BROKEN = "waiting for a step failed or was cancelled, which ended the generation"
USED = "the context was used, or released, while it was generated on, which ended the generation"
REFUSALS: Mapping[GenerationEvent, Mapping[GenerationState, str]] = {
    GenerationEvent.ASK: {
        **dict.fromkeys(IN_STEP, "two tasks iterate one generator: give each task a generator of its own"),
        **dict.fromkeys((GenerationState.LEAVING, GenerationState.LEFT), USED),
        **dict.fromkeys((GenerationState.ENDING, GenerationState.INTERRUPTED), BROKEN),
    },
    **dict.fromkeys((GenerationEvent.SEND, GenerationEvent.ANSWER), dict.fromkeys(OVERTAKEN, USED)),
    GenerationEvent.LEAVE: dict.fromkeys(
        IN_STEP, "another task waits for a step of the generation on this context: wait, cancel it, or go on in a fork"
    ),
    GenerationEvent.CLOSE: dict.fromkeys(
        IN_STEP, "the generator is waiting for a step in another task: cancel that task first"
    ),
}


class Lifecycle:
    """The state of one generation. Only :meth:`on` changes it.

    ========== =========== =========== ========================================================
    event      from        to          when
    ========== =========== =========== ========================================================
    ASK        NEW         PREPARING   the first step is asked for
    ASK        RUNNING     DELIVERING
    ASK        FINISHED    DELIVERING  to tell that there is no more step
    SEND       PREPARING   WAITING     the request to start goes out
    SEND       DELIVERING  WAITING     no step is buffered, so more are requested
    ANSWER     WAITING     DELIVERING
    REFUSE     WAITING     CLOSED      the runtime refused to start
    RETURN     PREPARING   NEW         what the context had buffered could not be sent
    RETURN     WAITING     INTERRUPTED the request failed or was cancelled
    RETURN     DELIVERING  RUNNING
    FINISH     DELIVERING  FINISHED
    LEAVE      NEW         LEAVING
    LEAVE      RUNNING     LEAVING
    LEAVE      INTERRUPTED LEAVING
    RELEASE    NEW         LEAVING
    RELEASE    RUNNING     LEAVING
    RELEASE    INTERRUPTED LEAVING
    RELEASE    PREPARING   LEAVING
    RELEASE    WAITING     LEAVING     another task waits for a step: it is told that the context was released
    RELEASE    DELIVERING  LEAVING
    CLOSE      NEW         INTERRUPTED
    CLOSE      RUNNING     INTERRUPTED
    CLOSE      FINISHED    ENDING
    RELEASED   INTERRUPTED CLOSED
    RELEASED   ENDING      CLOSED
    RELEASED   LEAVING     LEFT
    ========== =========== =========== ========================================================

    Every other event either changes nothing (CLOSE in CLOSED) or is refused (REFUSALS).
    """

    def __init__(self) -> None:
        self.state = GenerationState.NEW

    @property
    def overtaken(self) -> bool:
        """True if the context was used for something else, or released, since."""
        return self.state in OVERTAKEN

    def on(self, event: GenerationEvent) -> None:
        """Change the state. Raises InvalidRequest if the program may not do this now; the state then stays."""
        refusal = REFUSALS.get(event, {}).get(self.state)
        if refusal is not None:
            raise InvalidRequest(refusal)
        self.state = TRANSITIONS[event][self.state]
