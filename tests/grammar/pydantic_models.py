"""Models as programs write them, for what their schemas ask of a grammar."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AnyUrl, BaseModel, ConfigDict, Field, RootModel


class Person(BaseModel):
    """Someone."""

    name: str = Field(description="Full name", examples=["Ada Lovelace"])
    age: int = Field(ge=0, le=150, title="Age in years")


class Address(BaseModel):
    street: str
    zip: str = Field(pattern=r"^\d{5}$")
    country: str = Field("NZ", min_length=2, max_length=2)


class Customer(BaseModel):
    person: Person
    address: Address
    billing: Address | None = None


class Color(str, Enum):
    RED = "red"
    GREEN = "green"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Paint(BaseModel):
    color: Color
    level: Level = Level.LOW
    finish: Literal["matt", "gloss"] = "matt"
    version: Literal[2] = 2


class Tags(BaseModel):
    tags: list[str] = Field(min_length=1, max_length=3)
    scores: list[float] = Field(default_factory=list, max_length=2)


class Nested(BaseModel):
    rows: list[list[int]]


class Counts(BaseModel):
    counts: dict[str, int]


class AnyData(BaseModel):
    data: dict[str, Any]
    more: Any = None


class Bounded(BaseModel):
    ratio: float = Field(gt=0, lt=1)
    even: int = Field(multiple_of=2, ge=-10, le=10)
    big: int = Field(ge=10**9)


class Times(BaseModel):
    at: datetime
    day: date
    clock: time
    length: timedelta


class Names(BaseModel):
    id: UUID
    mail: str = Field(json_schema_extra={"format": "email"})
    site: AnyUrl


class Money(BaseModel):
    amount: Decimal = Field(max_digits=6, decimal_places=2)


class Flags(BaseModel):
    on: bool
    off: bool | None = None
    nothing: None = None


class Mixed(BaseModel):
    value: int | str | None
    items: list[int | bool]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Pets(BaseModel):
    pets: list[Cat | Dog] = Field(max_length=2)


class Tree(BaseModel):
    value: int
    children: list[Tree] = Field(max_length=2)


class Link(BaseModel):
    name: str
    next: Link | None = None


class Left(BaseModel):
    right: Right | None = None


class Right(BaseModel):
    left: Left | None = None


class Pair(BaseModel):
    point: tuple[float, float]
    named: tuple[str, int, bool]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int
    b: str = "x"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Aliased(BaseModel):
    kind: str = Field(alias="@type")
    odd: int = Field(alias='a "quoted" näme')


class Texts(BaseModel):
    code: str = Field(pattern=r"^[A-Z]{2}-[0-9]+$")
    short: str = Field(max_length=5)
    long: str = Field(min_length=10, max_length=20)


class Step(BaseModel):
    explanation: str
    output: str


class MathAnswer(BaseModel):
    steps: list[Step] = Field(max_length=3)
    final_answer: str


class Event(BaseModel):
    name: str
    date: str
    participants: list[str] = Field(max_length=3)


class Invoice(BaseModel):
    number: str = Field(pattern="^INV-[0-9]{4}$")
    lines: list[Line] = Field(min_length=1, max_length=2)
    due: date | None = None
    paid: bool = False


class Line(BaseModel):
    text: str = Field(max_length=20)
    amount: float = Field(ge=0)
    currency: Literal["EUR", "NZD"]


class Wide(BaseModel):
    a: int | None = None
    b: str | None = Field(None, max_length=4)
    c: list[Color] = Field(default_factory=list, max_length=2)
    d: dict[str, Person] = Field(default_factory=dict, max_length=1)
    e: Level | None = None


class Sets(BaseModel):
    keys: dict[Literal["a", "b"], int]


class People(RootModel[list[Person]]):
    pass


MODELS: list[type[BaseModel]] = [
    Person, Customer, Paint, Tags, Nested, Counts, AnyData, Bounded, Times, Names, Money, Flags, Mixed, Owner, Pets,
    Tree, Link, Left, Pair, Closed, Open, Aliased, Texts, MathAnswer, Event, Invoice, Wide, Sets, People,
]  # fmt: skip
