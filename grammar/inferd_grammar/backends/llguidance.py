"""llguidance: the default backend, for every kind of constraint.

Its traps, each closed here: errors are states, not exceptions (checked after every call); added tokens and byte 0xFF
are marked its own way (the token table is compared with its decoding); an error shows as a mask of EOS only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import llguidance

from inferd_grammar.backends.compose import Composer
from inferd_grammar.backends.counted_chars import counted, is_unsure
from inferd_grammar.backends.empty_definitions import empty_definition, without_empty
from inferd_grammar.backends.inner_texts import json_text_lark
from inferd_grammar.backends.llguidance_core import ForcedWalk, LlguidanceCore, Recipe
from inferd_grammar.backends.llguidance_schemas import library_pattern, loose_grammar, schema_grammar
from inferd_grammar.backends.llguidance_tokens import SLICES, readable, require_same_tokens
from inferd_grammar.backends.look_aheads import as_intersection, require_known
from inferd_grammar.backends.plain_lark import lark_grammar
from inferd_grammar.backends.text import UNSURE, choice_pattern, library_reason, one_line
from inferd_grammar.completion.composed import parts_of
from inferd_grammar.constraints import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.gbnf import gbnf_to_lark
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.matcher import Core
from inferd_grammar.matchers.product import ProductCore, product_members
from inferd_grammar.references import ELSEWHERE, read_by_place
from inferd_grammar.rewrites import KEYWORDS, Rewritten, rewrite
from inferd_grammar.rewrites.endless import without_endless
from inferd_grammar.rewrites.open_bounds import is_left_open
from inferd_grammar.rewrites.regex_dialect import Ambiguous, with_classes_of_python
from inferd_grammar.rewrites.soft_ends import SoftEnds, soften
from inferd_grammar.rewrites.wider import inlined, tight_forms, without_branches
from inferd_grammar.rules.core import JsonRules, RuledCore, RuleMasks
from inferd_grammar.rules.exact_numbers import require_exact_numbers, require_readable_numbers
from inferd_grammar.rules.make import rules_for, rules_for_parts, rules_from, rules_of_value
from inferd_grammar.schema import (
    escape,
    find_keyword,
    iter_schemas,
    require_regex,
    require_size,
    schema_text,
)
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked

# The default of 2,000 items compiles an object with 2,000 optional keys, then fails at its first key.
_MAX_ITEMS_IN_ROW = 20_000
# What the library leaves out, with or without a warning, when it is told to be lenient.
_LEFT_OUT = KEYWORDS - {
    *("$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum"),
    *("exclusiveMinimum", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum"),
    *("multipleOf", "pattern", "patternProperties", "prefixItems", "properties", "required", "type"),
}


class LlguidanceBackend:
    """Compiles constraints for one tokenizer. Safe to share between threads; compiling releases the GIL."""

    name = "llguidance"

    def __init__(self, table: TokenTable) -> None:
        """Build the library's tokenizer (about 0.2 s at 32k tokens, holding the GIL).

        Raises GrammarError if the library cannot read the tokenizer or decodes a token differently from `table`.
        """
        try:
            self._tokenizer = llguidance.LLTokenizer(
                readable(table.source), n_vocab=table.vocab_size, eos_token=list(table.eos_ids), slices=SLICES
            )
        except ValueError as error:
            raise GrammarError(f"llguidance refuses the tokenizer: {one_line(str(error))}") from error
        require_same_tokens(self._tokenizer, table)
        self._table = table
        self._walk = ForcedWalk(self._tokenizer, table)
        self._rule_masks: RuleMasks | None = None

    def compile(self, constraint: Constraint, limits: CompileLimits) -> Core:
        """Return the recogniser at its start, first mask computed. Raises GrammarError."""
        constraint = as_intersection(constraint)
        members = product_members(constraint, limits, join_regular=True)
        if members is not None:
            return ProductCore([self.compile(member, limits) for member in members])
        exact, inner = isinstance(constraint, ExactGrammar), constraint
        while isinstance(inner, ExactGrammar):
            inner = inner.inner
        if isinstance(inner, JsonSchemaGrammar) and inner.mode == "best_effort":
            return self._compile_best_effort(inner, limits, exact)
        if isinstance(inner, JsonSchemaGrammar | AnyJsonGrammar):
            return self._compile_json(inner, limits, exact)
        if isinstance(inner, _COMPOSED):
            return self._compile_composed(inner, limits, exact or isinstance(inner, PrefixedGrammar))
        walked = _is_walked(inner)
        grammar = _grammar(inner, limits)
        return self._start(Recipe(_unforced(grammar) if exact or walked else grammar, walked=walked), None)

    def rebuild(self, recipe: str) -> Core:
        """Return the core that another process compiled, from its `recipe`. Raises GrammarError."""
        parts = json.loads(recipe)
        if isinstance(parts, dict):
            return self._ruled(self.rebuild(parts["inner"]), rules_from(parts["rules"]))
        return self._start(Recipe.read(parts), None, lenient=True)

    def _compile_json(
        self, constraint: JsonSchemaGrammar | AnyJsonGrammar, limits: CompileLimits, exact: bool
    ) -> RuledCore:
        if isinstance(constraint, AnyJsonGrammar):
            return self._compile_exactly({}, Rewritten({}, []), exact)
        schema = _read(constraint, limits)
        _require_exact(schema)
        narrowed = False
        try:
            changed = _softened(rewrite(schema, hold_unique=True), constraint)
            narrowed = changed.narrowed
            try:
                return self._compile_exactly(schema, changed, exact)
            except GrammarError as refusal:
                joined = isinstance(changed.schema, dict) and _JOINED.search(refusal.reason)
                if not joined and empty_definition(refusal) is None:
                    raise
            named = _softened(rewrite(schema, hold_unique=True, always=True), constraint)
            changed = named._replace(schema=inlined(named.schema)) if joined else self._without_empty(named)
            return self._compile_exactly(schema, changed, exact)
        except GrammarError as refusal:
            if _unsatisfiable(schema, refusal) and not narrowed:
                raise
            return self._compile_guarded(schema, refusal)

    def _compile_exactly(self, schema: Any, changed: Rewritten, exact: bool) -> RuledCore:
        """Return a grammar that holds all of the schema."""
        core = self._start_schema(
            changed.schema, lambda grammar: Recipe(_unforced(grammar) if exact else grammar), schema
        )
        return self._ruled(core, rules_for(schema, unique=changed.unique, short=is_left_open(changed.schema)))

    def _without_empty(self, changed: Rewritten) -> Rewritten:
        """Return a document of which every reference names one of its own `$defs`, without those that no value satisfies."""
        return changed._replace(
            schema=without_empty(changed.schema, lambda document: self._start(Recipe(schema_grammar(document)), None))
        )

    def _compile_guarded(self, schema: Any, refusal: GrammarError) -> RuledCore:
        """Return a grammar that holds as much as it can, with a rule that only valid texts are closed. Raises `refusal`."""
        try:
            rules = rules_for(schema, refusal=refusal)
        except GrammarError:
            raise refusal from None
        for attempt in tight_forms(schema, self._without_empty, and_loosened=True):
            with suppress(GrammarError):
                return self._ruled(self._start_schema(attempt().schema, _unforced_recipe, schema), rules)
        with suppress(GrammarError):
            return self._ruled(self._start(Recipe(_unforced(loose_grammar(schema))), schema, lenient=True), rules)
        with suppress(GrammarError):
            loosest = self._without_empty(without_branches(schema)).schema
            return self._ruled(self._start_schema(loosest, _unforced_recipe, schema), rules)
        raise refusal

    def _ruled(self, core: Core, rules: JsonRules) -> RuledCore:
        if self._rule_masks is None:
            self._rule_masks = RuleMasks(self._table)
        return RuledCore(core, self._table, rules, self._rule_masks)

    def _compile_composed(self, constraint: Constraint, limits: CompileLimits, exact: bool) -> Core:
        named = counting = False
        while True:
            try:
                return self._compile_parts(constraint, limits, exact, named=named, counting=counting)
            except GrammarError as refusal:
                if is_unsure(refusal) and not counting:
                    counting = True
                elif empty_definition(refusal) is not None and not named:
                    named = True
                else:
                    raise

    def _compile_parts(
        self, constraint: Constraint, limits: CompileLimits, exact: bool, *, named: bool, counting: bool
    ) -> Core:
        """Compile a text of parts; `named`: the schemas in it by their definitions, without those that no value satisfies.
        `counting`: with lengths as :func:`counted` says them.
        """
        changed: dict[int, tuple[Any, Rewritten]] = {}

        def leaf(part: Constraint) -> str:
            if not isinstance(part, JsonSchemaGrammar | AnyJsonGrammar):
                return _grammar(part, limits)
            schema, rewritten = _rewritten(part, limits, named)
            changed[id(part)] = schema, self._without_empty(rewritten) if named else rewritten
            final = changed[id(part)][1].schema
            return schema_grammar(counted(final) if counting else final)

        walked = _is_walked(constraint)
        composer = Composer(leaf, self._table, limits, exact=exact or walked)
        grammar = composer.grammar(constraint)
        core = self._start(Recipe(grammar, named=frozenset(composer.named), walked=walked), None)
        value = _json_behind_prefix(constraint)
        if value is not None and isinstance(constraint, PrefixedGrammar):
            schema, rewritten = changed[id(value)]
            skip = len(constraint.prefix.encode())
            short = is_left_open(rewritten.schema)
            return self._ruled(core, rules_for(schema, unique=rewritten.unique, skip=skip, short=short))
        values = {
            part: rules_of_value(schema, unique=rewritten.unique, short=is_left_open(rewritten.schema))
            for part, (schema, rewritten) in changed.items()
        }
        rules = rules_for_parts(constraint, values, lambda text: self._table.spelled(text, core.named), len(core.named))
        return core if rules is None else self._ruled(core, rules)

    def _compile_best_effort(self, constraint: JsonSchemaGrammar, limits: CompileLimits, exact: bool) -> RuledCore:
        """Return a grammar as tight as the library takes: rewritten with holes, else as it leaves things out, else
        without branches, else any JSON.
        """
        schema = _read(constraint, limits)
        rules = rules_for(schema)

        def recipe(checked: list[Checked], grammar: str) -> Recipe:
            return Recipe(_unforced(grammar) if exact else grammar, _named(checked, limits))

        def ruled(rewritten: Any, checked: list[Checked]) -> RuledCore:
            return self._ruled(self._start_schema(rewritten, partial(recipe, checked), schema), rules)

        for n, attempt in enumerate(tight_forms(schema, self._without_empty)):
            narrowed = False
            try:
                changed = attempt()
                narrowed = changed.narrowed
                return ruled(changed.schema, [Checked(*place) for place in changed.dropped])
            except GrammarError as error:
                if _unsatisfiable(schema, error) and not (narrowed or (n == 0 and empty_definition(error))):
                    raise
        try:
            loose = recipe(_assertions(schema, _LEFT_OUT), loose_grammar(schema))
            return self._ruled(self._start(loose, schema, lenient=True), rules)
        except GrammarError as error:
            if _unsatisfiable(schema, error):
                raise
        with suppress(GrammarError):
            return ruled(self._without_empty(without_branches(schema)).schema, _assertions(schema, KEYWORDS))
        return ruled({}, _assertions(schema, KEYWORDS))

    def _start_schema(self, rewritten: Any, recipe: Callable[[str], Recipe], schema: Any) -> LlguidanceCore:
        """Start on the grammar of a rewritten schema, with lengths as :func:`counted` says them where it is refused otherwise."""
        try:
            return self._start(recipe(schema_grammar(rewritten)), schema)
        except GrammarError as refusal:
            if is_unsure(refusal) and (changed := counted(rewritten)) != rewritten:
                with suppress(GrammarError):
                    return self._start(recipe(schema_grammar(changed)), schema)
            raise

    def _start(self, recipe: Recipe, schema: Any, *, lenient: bool = False) -> LlguidanceCore:
        inner = llguidance.LLMatcher(self._tokenizer, recipe.grammar, log_level=0, limits=_parser_limits())
        # Some grammars compile and have no first token, e.g. {"$ref": "#"}.
        if inner.is_error():
            reason = library_reason(inner.get_error())
            raise GrammarError(_without_fetching(reason), _pointer(reason, schema))
        inner.compute_bitmask()
        if inner.is_error():
            reason = one_line(inner.get_error()).replace("NoExtensionBias", "no text matches")
            raise GrammarError(f"llguidance finds no first token: {reason}")
        if not lenient and (warnings := inner.get_grammar_warnings()):
            raise GrammarError(f"llguidance would not enforce this as written: {one_line('; '.join(warnings))}")
        return LlguidanceCore(inner, recipe, self._walk)


_COMPOSED = (
    TaggedGrammar, AllOfGrammar, PrefixedGrammar, TextGrammar, UntilGrammar, SequenceGrammar, AnyOfGrammar, RepeatedGrammar,
)  # fmt: skip
_GREEDY = (RegexGrammar, LarkGrammar, GbnfGrammar, AllOfGrammar, JsonTextGrammar)
_JOINED = re.compile("circular references with sibling keys|intersection stack level")
"""What the library says where it cannot join what holds together."""


def _is_walked(constraint: Constraint) -> bool:
    """Return True for a text in which something may follow an expression of any length. See :class:`ForcedWalk`."""
    if isinstance(constraint, ExactGrammar):
        return _is_walked(constraint.inner)
    if isinstance(constraint, RegexGrammar):
        return False  # its end is the end of the text
    return any(
        isinstance(part, _GREEDY) or (isinstance(part, UntilGrammar) and part.inner is not None)
        for part in parts_of(constraint)
    )


def _parser_limits() -> llguidance.LLParserLimits:
    # verbose_errors would put the schema and the text so far into every message.
    return llguidance.LLParserLimits(max_items_in_row=_MAX_ITEMS_IN_ROW, verbose_errors=False)


def _grammar(constraint: Constraint, limits: CompileLimits) -> str:
    """Return llguidance's grammar text of a constraint that stands alone and has no schema."""
    if isinstance(constraint, RegexGrammar):
        require_regex(constraint.pattern, limits)
        return llguidance.LLMatcher.grammar_from_regex(_of_python(constraint.pattern))
    if isinstance(constraint, ChoiceGrammar):
        return llguidance.LLMatcher.grammar_from_regex(choice_pattern(constraint, limits))
    if isinstance(constraint, LarkGrammar):
        return lark_grammar(constraint.text, limits)
    if isinstance(constraint, JsonTextGrammar):
        return llguidance.LLMatcher.grammar_from_lark(json_text_lark(constraint, limits))
    if isinstance(constraint, GbnfGrammar):
        require_size(constraint.text, "GBNF grammar", limits)
        return gbnf_to_lark(constraint.text, max_regex=limits.max_regex, max_rules=limits.max_rules)
    raise GrammarError(f"{type(constraint).__name__} is no constraint of this backend")


def _of_python(pattern: str) -> str:
    try:
        written = with_classes_of_python(pattern)
    except Ambiguous as error:
        raise GrammarError(f"dialects of regular expressions differ about this: {error}; write it without") from error
    require_known(written)
    return written


def _read(constraint: JsonSchemaGrammar, limits: CompileLimits) -> Any:
    """Return the schema's JSON value, whose subschemas all have finite values or none."""
    schema = without_endless(read_by_place(schema_text(constraint.schema), limits))
    require_readable_numbers(schema)
    return schema


def _require_exact(root: Any) -> None:
    """Raise GrammarError for numbers that the library would round, and for a pattern that dialects read differently."""
    require_exact_numbers(root)
    for pointer, schema in iter_schemas(root):
        if isinstance(schema, dict) and "pattern" in schema:
            library_pattern(schema["pattern"], f"{pointer}/pattern")
        for key in schema.get("patternProperties", ()) if isinstance(schema, dict) else ():
            library_pattern(key, f"{pointer}/patternProperties/{escape(key)}")


def _unsatisfiable(schema: Any, refusal: GrammarError) -> bool:
    return schema is False or "nsatisfiable" in refusal.reason


def _rewritten(
    constraint: JsonSchemaGrammar | AnyJsonGrammar, limits: CompileLimits, always: bool
) -> tuple[Any, Rewritten]:
    """Return the schema's JSON value, and what is left of it for the library."""
    if isinstance(constraint, AnyJsonGrammar):
        return {}, Rewritten({}, [])
    schema = _read(constraint, limits)
    _require_exact(schema)
    return schema, _softened(rewrite(schema, hold_unique=True, always=always), constraint)


def _softened(changed: Rewritten, constraint: JsonSchemaGrammar) -> Rewritten:
    ends = SoftEnds(constraint.soft_max_length, constraint.soft_max_items)
    return changed._replace(schema=soften(changed.schema, ends))


def _json_behind_prefix(constraint: Constraint) -> JsonSchemaGrammar | AnyJsonGrammar | None:
    """Return the JSON that follows a prefix; None for other constraints."""
    inner = constraint.inner if isinstance(constraint, PrefixedGrammar) else None
    while isinstance(inner, ExactGrammar):
        inner = inner.inner
    return inner if isinstance(inner, JsonSchemaGrammar | AnyJsonGrammar) else None


def _unforced(grammar: str) -> str:
    """Return the same grammar with masks that leave the model any split of the text into tokens."""
    if grammar.startswith("{"):
        (part,) = json.loads(grammar)["grammars"]
        grammar = part["lark_grammar"] or f"start: %json {json.dumps(part['json_schema'])}"
    return f'{grammar}\n%llguidance {{"no_forcing": true}}\n'  # behind it: messages of the library name lines


def _unforced_recipe(grammar: str) -> Recipe:
    return Recipe(_unforced(grammar))


def _named(checked: Sequence[Checked], limits: CompileLimits) -> tuple[Checked, ...]:
    """Return what is only checked, by schemas around it where telling each place takes too much."""
    levels = max((one.pointer.count("/") for one in checked), default=0)
    while sum(len(json.dumps(one._asdict())) for one in checked) > limits.max_checked:
        levels -= 1
        around = (Checked(one.keyword, "/".join(one.pointer.split("/")[: levels + 1])) for one in checked)
        checked = list(dict.fromkeys(around))
    return tuple(checked)


def _assertions(schema: Any, keywords: frozenset[str]) -> list[Checked]:
    return [
        Checked(key, f"{pointer}/{escape(key)}")
        for pointer, item in iter_schemas(schema)
        if isinstance(item, dict)
        for key in item
        if key in keywords
    ]


def _pointer(reason: str, schema: Any) -> str | None:
    """Return the JSON pointer of the keyword that the library refused; the library only names the keyword."""
    if schema is None:
        return None
    if found := re.search(r"Unimplemented keys: (\[.*?\])", reason):
        return find_keyword(schema, json.loads(found[1]))
    if found := re.search(r"Unknown format: (.*)", reason):
        return find_keyword(schema, ["format"], found[1])
    if found := re.search(r"(?:Pointer|Resource) '(.*?)'", reason):
        return _reference_pointer(schema, found[1])
    for mark, key in (
        ("oneOf constraints", "oneOf"),
        ("regex parse error", "pattern"),
        ("regular expression", "pattern"),
        (UNSURE, "pattern"),
    ):
        if mark in reason:
            return _only_place(schema, key)
    return None


def _without_fetching(reason: str) -> str:
    found = re.search(r"Resource '(.*?)' is not present", reason)
    return reason if found is None else f"a reference {ELSEWHERE.format(found[1])}"


def _reference_pointer(schema: Any, target: str) -> str | None:
    for pointer, item in iter_schemas(schema):
        reference = str(item.get("$ref", "")) if isinstance(item, dict) else ""
        document = reference.partition("#")[0].removeprefix("./")  # what it leads to has been joined with an address
        if reference in (target, f"#{target}") or (document and target.endswith(document)):
            return f"{pointer}/$ref"
    return None


def _only_place(schema: Any, key: str) -> str | None:
    places = [pointer for pointer, item in iter_schemas(schema) if isinstance(item, dict) and key in item]
    return f"{places[0]}/{key}" if len(places) == 1 else None
