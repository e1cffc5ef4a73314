#!/usr/bin/env python3
"""Makes one frame of each kind, and a manifest, from the byte tables alone.

usage: make.py      (writes frames.txt beside itself; needs the package `blake3`)

A line is a name and hexadecimal bytes. Every field holds numbers that appear nowhere else in its frame.
"""
import pathlib
import struct

from blake3 import blake3

HERE = pathlib.Path(__file__).parent


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(kind, body):
    header = b"MUSR" + struct.pack("<HHIQ", 2, kind, 0, len(body))
    return header + struct.pack("<I", crc32c(header)) + body + blake3(body).digest()


def run(start, count):
    return bytes((start + index) % 256 for index in range(count))


def node(start):
    return run(start, 16) + run(start + 16, 32) + b"".join(run(start + 48 + n, 32) for n in range(5))


HANDOFF, NONCE, SENDER_NONCE, HELD = run(0xA0, 16), run(0x11, 32), run(0x55, 32), run(0x77, 32)
REALM = run(0x99, 32)
RECEIVER, SENDER = node(1), run(0x81, 16) + run(0xC1, 32) + node(1)[48:]
TOKENS = [5, 0x01020304, 0xFFFFFFFF]
KEY, LANE = run(0x30, 32), run(0x66, 32)

# The page of 64 zeroes, packed: one literal 0, a match of 58 bytes at distance 1, and five literals.
PACKED = bytes([0x1F, 0, 1, 0, 58 - 4 - 15, 0x50, 0, 0, 0, 0, 0])
PAGE = run(0xD0, 64)
pages = HANDOFF + struct.pack("<QBII", 0, 1, 4, 2)
pages += struct.pack("<B3xI", 0, 64) + PAGE + struct.pack("<B3xI", 1, len(PACKED)) + PACKED

prompt = blake3(b"".join(struct.pack("<I", token) for token in TOKENS)).digest()
binding = RECEIVER[48:] + struct.pack("<I", 9) + NONCE + SENDER_NONCE + HANDOFF + RECEIVER[:16] + SENDER[:16]
binding += RECEIVER[16:48] + SENDER[16:48] + prompt + struct.pack("<IIII", 3, 4, 60000, 1)
assert len(binding) == 388
root = blake3(binding, derive_key_context="muser 2026 handoff manifest v3").digest()
root = blake3(root + blake3(pages).digest() + struct.pack("<Q", 0)).digest()
TIMES = struct.pack("<5Q", 0x1112131415, 0x2122232425, 0x3132333435, 0xFFFFFFFFFFFFFFFF, 0x4142434445)
mac = blake3(LANE + root + struct.pack("<QQ", 1, 64 + len(PACKED)) + TIMES, key=KEY).digest()

detail = "zu viel los: übermorgen".encode()
request = HANDOFF + struct.pack("<I", 9) + NONCE + struct.pack("<III", 60000, 3, 4) + HELD
request += struct.pack("<I", 3) + REALM + struct.pack("<3I", *TOKENS)
frames = {
    "hello": frame(1, struct.pack("<HH", 3, 4) + RECEIVER + struct.pack("<I", 1 << 20)),
    "hello_ack": frame(2, struct.pack("<H", 3) + SENDER + struct.pack("<III", 8, 1, 1 << 21)),
    "refuse": frame(3, HANDOFF + struct.pack("<HBIB", 2, 5, 1234, len(detail)) + detail),
    "request": frame(4, request),
    "accept": frame(5, HANDOFF + SENDER_NONCE + struct.pack("<IIQQI", 4, 3, 2, 128, 1)),
    "pages": frame(6, pages),
    "progress": frame(7, HANDOFF + struct.pack("<II", 2, 3)),
    "commit": frame(8, HANDOFF + struct.pack("<QQ", 1, 64 + len(PACKED)) + TIMES + LANE + root + mac),
    "installed": frame(9, HANDOFF),
    "cancel": frame(10, HANDOFF + struct.pack("<H", 2)),
    "ping": frame(11, struct.pack("<Q", 0x0102030405060708)),
    "pong": frame(12, struct.pack("<Q", 0xF1F2F3F4F5F6F7F8)),
}
(HERE / "frames.txt").write_text("".join(f"{name} {data.hex()}\n" for name, data in frames.items()))
