"""Loops of machine code, as nvdisasm prints it."""
import re

LABEL = re.compile(r"^(\.L_x_\d+):")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+((?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*);)")


def instructions(sass):
    """Pairs of opcode, without its modifiers, and text, in order."""
    return [(match[2].split(".")[0], match[1]) for match in map(INSTRUCTION.search, sass.splitlines()) if match]


def hottest_loop(sass, opcode):
    """The loop with most of this opcode for its length, as instructions(); empty where none has it."""
    code, labels, counts = [], {}, [0]  # counts[i]: of the opcode, before instruction i
    for line in sass.splitlines():
        if match := LABEL.match(line):
            labels[match[1]] = len(code)
        elif match := INSTRUCTION.search(line):
            code.append((match[2].split(".")[0], match[1]))
            counts.append(counts[-1] + (code[-1][0] == opcode))
    best, found = 0, (0, 0)
    for end, (name, text) in enumerate(code, 1):
        target = re.search(r"\.L_x_\d+", text) if name == "BRA" else None
        begin = labels.get(target[0], end) if target else end
        share = (counts[end] - counts[begin]) / (end - begin) if begin < end - 1 else 0
        if share > best:
            best, found = share, (begin, end)
    return code[slice(*found)]
