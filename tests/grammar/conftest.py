from __future__ import annotations

import pytest
from grammar_helpers import make_compiler

from octavo.grammar.compiler import GrammarCompiler


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    return make_compiler()
