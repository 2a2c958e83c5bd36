"""What compiling and following a grammar may cost. Limits on sources are with whoever reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

COMPILE_SECONDS = 4.0
"""Longest that a caller waits for a grammar, for others' to be compiled included."""
CHECK_CPU_SECONDS = 1.5
"""That the worker process may take for one; the engine's process then takes as much again."""
MASK_SECONDS = 0.2
"""Processor time that the first mask may take: later ones are filled while everybody's step runs."""
NICENESS = 10
"""Of whoever compiles: steps go first, and lose a tenth of a processor at most."""
CHECK_STACK_BYTES = 64 << 20
"""Of the worker; llguidance calls itself for each `$ref` and each rule, 10 to 25 kB deep."""
COMPILE_STACK_BYTES = 2 * CHECK_STACK_BYTES
"""In the engine's process, where an overflow would end everybody's requests. Address space only."""


def library_limits() -> LLParserLimits:
    """Bound what one mask costs: about 7 ms of lexing, 3 ms of parsing; and memory, about 2 kB per lexer state."""
    from llguidance import LLParserLimits

    return LLParserLimits(step_lexer_fuel=100_000, step_max_items=50_000, max_lexer_states=50_000, verbose_errors=False)
