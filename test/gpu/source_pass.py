"""Makes C++ for clang of preprocessed kernel text, and looks for what clang cannot see.

Metal's `threadgroup` is a qualifier of types, a storage class and an attribute, which no macro can
tell apart. The pass reads the attributes of kernels' arguments and drops them, takes memory for
threadgroup variables (CUDA: __shared__), and appends what registers each kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ADDRESS_SPACES = {"device", "constant", "threadgroup", "thread"}
LAST_BUFFER_INDEX = 30
BUILTINS = {
    name: f"hgemu::Role::{name}"
    for name in (
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
        "threads_per_threadgroup",
        "threadgroups_per_grid",
        "thread_position_in_grid",
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
    )
}
# What neither language has in kernels, and what only CUDA has.
BANNED = ["goto", "try", "catch", "throw", "virtual", "dynamic_cast", "typeid", "new", "delete"]
BANNED += ["__restrict__", "__restrict"]
BANNED_IN_METAL = [*BANNED, "double"]
# CUDA's, which differ from Metal's of these names. The dialect has its own.
MATH = "fabs sqrt floor ceil rint trunc exp exp2 expm1 log log2 log1p tanh erf sin cos".split()
MATH += ["copysign", "fma", "pow"]


class SourceError(Exception):
    """Kernel text that the real compilers would refuse, or that the emulator does not know."""


@dataclass
class Function:
    name: str
    head: int  # where its declaration begins
    parameters: tuple[int, int]
    body: tuple[int, int]
    is_kernel: bool


@dataclass
class Argument:
    role: str
    index: int


def mask(text: str) -> str:
    """The text with line markers, pragmas and strings blank, of the same length."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group(0))

    text = re.sub(r"^[ \t]*#[^\n]*", blank, text, flags=re.M)
    text = re.sub(r"_Pragma\(\"[^\"\n]*\"\)", blank, text)
    return re.sub(r"\"(?:[^\"\\\n]|\\.)*\"", blank, text)


def line_of(text: str, at: int) -> str:
    """`file:line` of a position, by the line markers before it."""
    file, line = "kernel", 1
    for row in text[:at].split("\n"):
        marker = re.match(r"#(?:line)? (\d+) \"([^\"]*)\"", row)
        if marker:
            line, file = int(marker[1]), marker[2]
        else:
            line += 1
    return f"{file}:{line - 1}"


def closing(text: str, at: int) -> int:
    """The position behind the bracket that closes the one at `at`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth = 0
    for i in range(at, len(text)):
        if text[i] in pairs:
            depth += 1
        elif text[i] in ")}]":
            depth -= 1
            if depth == 0:
                return i + 1
    raise SourceError("a bracket is not closed")


def functions_of(masked: str, kernel_word: str) -> list[Function]:
    """The functions that have a body, also those of structs and namespaces."""
    found = []
    i = begin = 0
    while i < len(masked):
        c = masked[i]
        if c in ";}":
            begin = i + 1
        elif c == "(":
            end = closing(masked, i)
            name = re.search(r"(\w+)\s*$", masked[begin:i])
            behind = re.match(r"\s*(?:const\s*)?\{", masked[end:])
            if name and behind:
                brace = end + behind.end() - 1
                body_end = closing(masked, brace)
                head = masked[begin:i]
                found.append(
                    Function(
                        name[1],
                        begin,
                        (i + 1, end - 1),
                        (brace, body_end),
                        re.search(rf"\b{kernel_word}\b", head) is not None,
                    )
                )
                end = begin = body_end
            i = end
            continue
        elif c == "{":
            head = masked[begin:i]
            if re.search(r"\benum\b", head) or not re.search(
                r"\b(struct|union|class|namespace|extern)\b", head
            ):
                i = closing(masked, i)
                continue
            begin = i + 1
        i += 1
    return found


def split_parameters(masked: str, span: tuple[int, int]) -> list[tuple[int, int]]:
    """The spans of parameters, separated by commas outside of brackets."""
    spans, depth, begin = [], 0, span[0]
    for i in range(*span):
        if masked[i] in "([{<":
            depth += 1
        elif masked[i] in ")]}>":
            depth -= 1
        elif masked[i] == "," and depth == 0:
            spans.append((begin, i))
            begin = i + 1
    if masked[begin : span[1]].strip():
        spans.append((begin, span[1]))
    return spans


class Pass:
    def __init__(self, text: str, prelude: str) -> None:
        self.text = text
        self.is_metal = prelude == "metal"
        self.masked = mask(text)
        self.functions = functions_of(self.masked, "kernel" if self.is_metal else "__global__")
        self.edits: list[tuple[int, int, str]] = []  # a span and what stands there instead

    def error(self, at: int, why: str) -> SourceError:
        return SourceError(f"{line_of(self.text, at)}: {why}")

    def check_words(self) -> None:
        for word in BANNED_IN_METAL if self.is_metal else BANNED:
            found = re.search(rf"\b{word}\b", self.masked)
            if found:
                raise self.error(found.start(), f"{word} is not of the language")
        if found := re.search(r"\bstd\s*::", self.masked):
            raise self.error(found.start(), "std:: is not of the language")
        if found := re.search(r"(?:^|[^\w\)\]\s\[])\s*\[(?!\[)[^\[\]]*\]\s*[({]", self.masked):
            raise self.error(found.start(), "lambdas are not of MSL before 3.2")
        if self.is_metal and (found := re.search(r"\batomic\s*<\s*(half|bfloat)\b", self.masked)):
            raise self.error(found.start(), f"no atomic is of {found[1]}")

    def check_pragmas(self) -> None:
        """They are the preludes': a kernel's text has HG_UNROLL, and nothing may be contracted."""
        for found in re.finditer(r"#[ \t]*pragma\b([^\n]*)", self.text):
            said = found[1].lower()
            if "contract" in said and not re.search(r"\boff\b", said):
                raise self.error(found.start(), "no operation may be contracted into another one")
            if self.is_metal and said.split()[:1] == ["unroll"]:
                raise self.error(found.start(), "HG_UNROLL says it to both languages")

    def check_math(self) -> None:
        """By their names functions are others in each language; the dialect's own call those."""
        called = re.compile(rf"(?<![\w:.])((?:{'|'.join(MATH)})f?)\s*\(")
        for function in self.functions:
            found = called.search(self.masked, *function.body)
            if found and not function.name.startswith(("hg_", "math_")):
                raise self.error(found.start(), f"{found[1]} is not of the dialect")

    def check_pointers(self) -> None:
        """Of functions that are no kernels: at each pointer Metal wants one address space."""
        spaces = "|".join(sorted(ADDRESS_SPACES))
        two = rf"\b({spaces})\s+(?:const\s+)?({spaces})\b"
        if found := re.search(two, self.masked):
            raise self.error(found.start(), f"two address spaces: {' '.join(found[0].split())}")
        for function in self.functions:
            if function.is_kernel:
                continue
            for begin, end in split_parameters(self.masked, function.parameters):
                words = self.masked[begin:end]
                if re.search(r"[*&]", words) and not ADDRESS_SPACES & set(
                    re.findall(r"\w+", words)
                ):
                    raise self.error(
                        begin + len(words) - len(words.lstrip()),
                        f"a pointer without address space: {' '.join(words.split())}",
                    )

    def check_recursion(self) -> None:
        """By names that one function has: overloads that call each other are no recursion."""
        names = [f.name for f in self.functions]
        single = {f.name: f for f in self.functions if names.count(f.name) == 1}
        calls = {
            name: set(re.findall(r"(\w+)\s*\(", self.masked[slice(*f.body)])) & set(single)
            for name, f in single.items()
        }
        state: dict[str, int] = {}

        def visit(name: str) -> None:
            state[name] = 1
            for called in calls[name]:
                if state.get(called) == 1:
                    raise self.error(single[called].body[0], f"{called} calls itself")
                if called not in state:
                    visit(called)
            state[name] = 2

        for name in single:
            if name not in state:
                visit(name)

    def take_shared(self) -> None:
        word = "threadgroup" if self.is_metal else "__shared__"
        space = "threadgroup " if self.is_metal else ""
        declaration = re.compile(
            rf"\b{word}\s+([\w:]+(?:\s+[\w:]+)*?)\s+(\w+)\s*((?:\[[^\]]*\])*)\s*;"
        )
        kernels = [f for f in self.functions if f.is_kernel]
        for number, found in enumerate(declaration.finditer(self.masked)):
            at = found.start()
            inside = next((k for k in kernels if k.body[0] < at < k.body[1]), None)
            if inside is None:
                raise self.error(at, f"{word} variable {found[2]} outside of a kernel")
            before = self.masked[inside.body[0] : at]
            if before.count("{") - before.count("}") != 1:
                raise self.error(at, f"{word} variable {found[2]} not at the top of the kernel")
            kind, name, extent = space + found[1], found[2], found[3]
            memory = f"hgemu::hgemu_shared({number}, sizeof({found[1]}{extent}))"
            address = f"reinterpret_cast<__UINTPTR_TYPE__>({memory})"
            put = f"{kind} (&{name}){extent} = *reinterpret_cast<{kind} (*){extent}>({address});"
            self.edits.append((at, found.end(), put))

    def metal_argument(self, begin: int, end: int) -> Argument:
        words = self.masked[begin:end]
        shown = " ".join(words.split())
        at = begin + len(words) - len(words.lstrip())
        attribute = re.search(r"\[\[\s*(\w+)\s*(?:\(\s*(\w+)\s*\)\s*)?\]\]", words)
        if attribute is None:
            raise self.error(at, f"a kernel's argument without an attribute: {shown}")
        self.edits.append((begin + attribute.start(), begin + attribute.end(), ""))
        declared = words[: attribute.start()]
        spaces = ADDRESS_SPACES & set(re.findall(r"\w+", declared))
        name, number = attribute[1], attribute[2]
        if name in BUILTINS:
            return Argument(BUILTINS[name], 0)
        if name not in ("buffer", "threadgroup") or number is None or not number.isdecimal():
            raise self.error(at, f"an attribute that the emulator does not know: {attribute[0]}")
        if "*" not in declared and "&" not in declared:
            raise self.error(at, f"a {name} by value: {shown}")
        allowed = {"threadgroup"} if name == "threadgroup" else {"device", "constant"}
        if len(spaces) != 1 or not spaces <= allowed:
            raise self.error(at, f"a {name} without its address space: {shown}")
        if int(number) > LAST_BUFFER_INDEX:
            raise self.error(at, f"{name} {number}: the last index is {LAST_BUFFER_INDEX}")
        if name == "threadgroup":
            return Argument("hgemu::Role::threadgroup_memory", int(number))
        if "&" in declared:
            if spaces != {"constant"}:
                raise self.error(at, f"a reference to device memory: {shown}")
            return Argument("hgemu::Role::parameter", int(number))
        return Argument("hgemu::Role::buffer", int(number))

    def register_kernels(self) -> list[str]:
        lines = []
        for number, kernel in enumerate(f for f in self.functions if f.is_kernel):
            arguments = []
            for position, (begin, end) in enumerate(
                split_parameters(self.masked, kernel.parameters)
            ):
                if self.is_metal:
                    arguments.append(self.metal_argument(begin, end))
                    continue
                role = "buffer" if "*" in self.masked[begin:end] else "parameter"
                arguments.append(Argument(f"hgemu::Role::{role}", position))
            given = [(a.role.endswith("memory"), a.index) for a in arguments]
            given = [
                g for g, a in zip(given, arguments, strict=True) if a.role not in BUILTINS.values()
            ]
            if len(given) > LAST_BUFFER_INDEX + 1:
                raise self.error(
                    kernel.parameters[0],
                    f"{kernel.name}: {len(given)} arguments: there may be {LAST_BUFFER_INDEX + 1}",
                )
            if len(set(given)) != len(given):
                raise self.error(kernel.parameters[0], f"{kernel.name}: an index is taken twice")
            listed = ", ".join(f"{{{a.role}, {a.index}, 0}}" for a in arguments)
            lines.append(f'HGEMU_KERNEL({number}, "{kernel.name}", {kernel.name}, {listed})')
            if self.is_metal:
                head = re.search(r"\bkernel\b", self.masked[kernel.head : kernel.parameters[0]])
                assert head is not None  # or it were no kernel
                self.edits.append((kernel.head + head.start(), kernel.head + head.end(), "static"))
        if not lines:
            raise SourceError("the text has no kernel")
        return lines

    def run(self) -> str:
        self.check_words()
        self.check_pragmas()
        if self.is_metal:
            self.check_pointers()
        else:
            self.check_math()
        self.check_recursion()
        self.take_shared()
        registration = self.register_kernels()
        text = self.text
        for begin, end, put in sorted(self.edits, reverse=True):
            text = text[:begin] + put + text[end:]
        return "\n".join([text, '#include "registration.h"', *registration, ""])


def transform(text: str, prelude: str) -> str:
    """C++ that registers the kernels of preprocessed text; SourceError if it is not allowed."""
    return Pass(text, prelude).run()
