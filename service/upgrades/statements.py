"""What a statement of a migration does, which locks PostgreSQL takes for it, and who is kept waiting meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

# What is done while the lock is held, apart from an entry in the catalog.
Work = Literal["none", "scan", "index", "index beside writes", "rewrite", "rows"]
# What processes of the version before can do afterwards.
Old = Literal["keep working", "may be refused", "fail"]
Blocks = Literal["nothing", "writes", "reads and writes"]
_BLOCKS: dict[str, Blocks] = {
    "ROW SHARE": "nothing", "ROW EXCLUSIVE": "nothing", "SHARE UPDATE EXCLUSIVE": "nothing",
    "SHARE": "writes", "SHARE ROW EXCLUSIVE": "writes", "ACCESS EXCLUSIVE": "reads and writes",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One statement."""

    words: str
    table: str | None = None  # whose rows are read or locked
    lock: str | None = None  # PostgreSQL's name; None: it locks no table that is in use
    work: Work = "none"
    old: Old = "keep working"
    also_locks: tuple[str, ...] = ()  # tables, for writes, for a moment
    known: bool = True  # False: no rule tells what it does
    on_new_table: bool = False  # one that nobody uses yet
    index: str | None = None  # that it creates
    is_repeatable: bool = False  # done twice it does no more, and does not fail

    @property
    def blocks(self) -> Blocks:
        """What others cannot do with the table while it lasts."""
        return "nothing" if self.lock is None else _BLOCKS[self.lock]

    @property
    def is_online(self) -> bool:
        """Whether the service goes on as if nothing happened: nobody waits for long, and nobody fails afterwards."""
        waits = self.blocks != "nothing" and self.work != "none"
        return self.known and not waits and self.old != "fail"


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    words: str  # with the groups of the pattern
    lock: str | None = None
    work: Work = "none"
    old: Old = "keep working"


def _rule(pattern: str, words: str, lock: str | None = None, work: Work = "none", old: Old = "keep working") -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE | re.DOTALL), words, lock, work, old)


_ALL, _MOST, _SHARED, _BESIDE = "ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "SHARE", "SHARE UPDATE EXCLUSIVE"
_ALTER = r"ALTER TABLE (?:ONLY )?(?P<table>\w+) (?:DROP CONSTRAINT IF EXISTS \w+, )?"
_ADD = _ALTER + r"ADD CONSTRAINT (?P<name>\w+) "
_COLUMN = _ALTER + r"ADD COLUMN (?:IF NOT EXISTS )?(?P<name>\w+) "
_INDEX = r"(?P<name>\w+) ON (?P<table>\w+)"
_CREATE_TABLE = _rule(r"CREATE TABLE (?P<table>\w+)", "create table {table}")
# The first that fits.
_RULES = (
    _CREATE_TABLE,
    _rule(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (?:IF NOT EXISTS )?" + _INDEX,
          "create index {name} on {table} beside writes", _BESIDE, "index beside writes"),
    _rule(r"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?" + _INDEX, "create index {name} on {table}", _SHARED, "index"),
    _rule(r"DROP INDEX CONCURRENTLY (?:IF EXISTS )?(?P<name>\w+)", "drop index {name} beside writes", _BESIDE),
    _rule(r"DROP INDEX (?:IF EXISTS )?(?P<name>\w+)", "drop index {name}", _ALL),
    _rule(_COLUMN + r".*GENERATED ALWAYS AS .*STORED", "add computed column {name} to {table}", _ALL, "rewrite"),
    _rule(_COLUMN + r".*DEFAULT \w+\(", "add column {name} with a computed default to {table}", _ALL, "rewrite"),
    _rule(_COLUMN + r"(?!.*DEFAULT).*NOT NULL", "add column {name} without a default to {table}", _ALL, old="fail"),
    _rule(_COLUMN, "add column {name} to {table}", _ALL),
    _rule(_ADD + r"CHECK .*NOT VALID", "check {name} of {table} for new rows", _ALL, old="may be refused"),
    _rule(_ADD + r"CHECK ", "check {name} of {table} for all rows", _ALL, "scan", "may be refused"),
    _rule(_ADD + r"FOREIGN KEY.*NOT VALID", "foreign key {name} of {table} for new rows", _MOST, old="may be refused"),
    _rule(_ADD + r"FOREIGN KEY", "foreign key {name} of {table} for all rows", _MOST, "scan", "may be refused"),
    _rule(_ADD + r"(?:UNIQUE|PRIMARY KEY) USING INDEX", "key {name} of {table} from its index", _ALL),
    _rule(_ADD + r"(?:UNIQUE|PRIMARY KEY)", "key {name} of {table}", _ALL, "index", "may be refused"),
    _rule(_ALTER + r"VALIDATE CONSTRAINT (?P<name>\w+)", "check {name} for the old rows of {table}", _BESIDE, "scan"),
    _rule(_ALTER + r"DROP CONSTRAINT (?:IF EXISTS )?(?P<name>\w+)", "drop constraint {name} of {table}", _ALL),
    _rule(_ALTER + r"DROP COLUMN (?:IF EXISTS )?(?P<name>\w+)", "drop column {name} of {table}", _ALL, old="fail"),
    _rule(_ALTER + r"RENAME ", "rename in {table}", _ALL, old="fail"),
    _rule(_ALTER + r"ALTER COLUMN (?P<name>\w+) (?:SET DATA )?TYPE ", "another type for {name} of {table}", _ALL,
          "rewrite", "may be refused"),
    _rule(_ALTER + r"ALTER COLUMN (?P<name>\w+) SET NOT NULL", "no nulls in {name} of {table}", _ALL, "scan", "fail"),
    _rule(_ALTER + r"ALTER COLUMN (?P<name>\w+) (?:DROP|SET) ", "another default or null for {name} of {table}", _ALL),
    _rule(_ALTER + r"(?:RE)?SET \(", "set how {table} is stored", _BESIDE),
    _rule(r"DROP TABLE (?:IF EXISTS )?(?P<table>\w+)", "drop table {table}", _ALL, old="fail"),
    _rule(r"UPDATE (?P<table>\w+) ", "change rows of {table}", "ROW EXCLUSIVE", "rows"),
    _rule(r"DELETE FROM (?P<table>\w+)", "delete rows of {table}", "ROW EXCLUSIVE", "rows"),
    _rule(r"INSERT INTO (?P<table>\w+)", "insert rows into {table}", "ROW EXCLUSIVE", "rows"),
    _rule(r"ANALYZE (?P<table>\w+)", "count {table} for the query planner", _BESIDE, "scan"),
    _rule(r"CREATE (?:OR REPLACE )?FUNCTION (?P<name>\w+)", "create function {name}"),
    _rule(r"DROP FUNCTION (?:IF EXISTS )?(?P<name>\w+)", "drop function {name}"),
    _rule(r"CREATE TRIGGER (?P<name>\w+) .*? ON (?P<table>\w+)", "create trigger {name} on {table}", _MOST),
    _rule(r"DROP TRIGGER (?:IF EXISTS )?(?P<name>\w+) ON (?P<table>\w+)", "drop trigger {name} on {table}", _ALL),
)  # fmt: skip
_OF_THE_SESSION = re.compile(r"(?:SET|RESET|PRAGMA|BEGIN|COMMIT)\b", re.IGNORECASE)
_REFERS = re.compile(r"\bREFERENCES (\w+)", re.IGNORECASE)
_REPEATABLE = re.compile(
    r"^(?:UPDATE|DELETE|ANALYZE) |\bIF (?:NOT )?EXISTS |^ALTER TABLE \w+ (?:RE)?SET \(", re.IGNORECASE
)
_SHOWN_CHARS = 80


def change_of(statement: str) -> Change | None:
    """What a statement does; None: nothing to tables."""
    text = " ".join(statement.replace('"', "").split()).rstrip(";")  # names of ours need no quotes
    if not text or _OF_THE_SESSION.match(text):
        return None
    for rule in _RULES:
        found = rule.pattern.match(text)
        if found is None:
            continue
        named = found.groupdict()
        refers = tuple(dict.fromkeys(one for one in _REFERS.findall(text) if one != named.get("table")))
        change = Change(
            rule.words.format(**named), named.get("table"), rule.lock, rule.work, rule.old, refers,
            is_repeatable=_REPEATABLE.search(text) is not None,
        )  # fmt: skip
        if change.work.startswith("index") and "CREATE" in text[:6].upper():
            return replace(change, index=named["name"])
        return replace(change, on_new_table=True) if rule is _CREATE_TABLE else change
    return Change(text[:_SHOWN_CHARS], None, _ALL, old="fail", known=False)
