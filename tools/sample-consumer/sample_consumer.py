"""A consumer of what the relay publishes, to read and to copy: shows each message once, whatever comes twice.

Messages come at least once: after a crash the relay publishes some of them again, and a consumer that dies
before it commits its offset reads some of them again. So what a message does here (a row about its deal) and
the note that it was done are one transaction; a second one changes nothing.
"""

import argparse
import hashlib
import hmac
import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ["deal.events", "escrow.commands", "delivery.commands", "notifications.outbox"]
RELAY = b"outbox-relay"
NANO_PER_TON = 1_000_000_000

TABLES = """
    CREATE TABLE IF NOT EXISTS seen (topic TEXT, id TEXT, PRIMARY KEY (topic, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS deals (deal_id TEXT PRIMARY KEY, seq INTEGER, status TEXT, escrow_nano INTEGER);
"""


def default_brokers():
    for name in ("KAFKA_BROKERS", "REDPANDA_BROKERS"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        return json.loads((ROOT / ".local/stack.json").read_text())["brokers"]
    except (OSError, ValueError, KeyError):
        return "localhost:19092"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", default=default_brokers(), help="default: those of `make up`, else %(default)s")
    parser.add_argument("--group", default="sample-consumer", help="instances of one group share the work")
    parser.add_argument("--prefix", default=os.environ.get("KAFKA_TOPIC_PREFIX", "payments"),
                        help="of the topic PREFIX.dlq (default: %(default)s)")
    parser.add_argument("--store", type=Path, default=ROOT / ".local/sample-consumer.db",
                        help="what was seen and what came of it (default: .local/sample-consumer.db)")
    parser.add_argument("--key", default=os.environ.get("WORKER_SIGNING_KEY"),
                        help="the workers' key, to check who sent a message (or WORKER_SIGNING_KEY)")
    parser.add_argument("--until-idle", type=float, metavar="SECONDS", help="end once nothing came for so long")
    return parser.parse_args()


def is_signed(key, headers, body):
    """As workers' own reports are signed: see X-Worker-Signature in docs/events.md."""
    name = headers.get("X-Worker-Id", b"")
    stamp = headers.get("X-Worker-Timestamp", b"")
    given = headers.get("X-Worker-Signature", b"")
    signed = name + b"." + stamp + b"." + body if given.startswith(b"v2=") else body
    wanted = hmac.new(key.encode(), signed, hashlib.sha256).hexdigest().encode()
    return name == RELAY and hmac.compare_digest(given.removeprefix(b"v2="), wanted)


def identity(topic, event):
    """What must not take effect twice: a command by its own id, which it keeps when it is issued again. A dead
    letter has its message's event_id, so ids are told apart by topic."""
    if topic.endswith(".commands"):
        return event["payload"]["command_id"]
    return event["event_id"]


def apply(store, topic, event):
    """Does what a message is for, once. False where that was done before."""
    with store:
        seen = store.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (topic, identity(topic, event)))
        if seen.rowcount == 0:
            return False
        if topic == "deal.events":
            # A late one never overwrites what came after it.
            fact = event["payload"]
            store.execute(
                "INSERT INTO deals VALUES (?, ?, ?, ?) ON CONFLICT (deal_id) DO UPDATE SET"
                " seq = excluded.seq, status = excluded.status, escrow_nano = excluded.escrow_nano"
                " WHERE excluded.seq > deals.seq",
                (event["aggregate_id"], fact["seq"], fact["to_status"], fact["escrow_nano"]),
            )
        return True


def ton(nano):
    return f"{nano // NANO_PER_TON}.{nano % NANO_PER_TON:09}".rstrip("0").rstrip(".") + " TON"


def told(topic, event):
    """What a message says, in a few words."""
    payload = event["payload"]
    if topic.endswith(".dlq"):
        return f"could not be published: {event['error']}"
    if topic == "deal.events":
        return f"{payload['from_status'] or 'new'} → {payload['to_status']}, {ton(payload['escrow_nano'])} in escrow"
    if "amount_nano" in payload:
        return f"{ton(payload['amount_nano'])} to {payload['to_address']}"
    return payload.get("text") or payload.get("command_id", "")


def main():
    options = arguments()
    options.store.parent.mkdir(parents=True, exist_ok=True)
    store = sqlite3.connect(options.store)
    store.executescript(TABLES)
    consumer = Consumer({
        "bootstrap.servers": options.brokers,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        # An offset is committed once its message is in the store, and not before.
        "enable.auto.commit": False,
        "session.timeout.ms": 10_000,
    })
    topics = [*TOPICS, f"{options.prefix}.dlq"]
    consumer.subscribe(topics)
    print(f"reading {', '.join(topics)} from {options.brokers} as {options.group}; Ctrl-C ends it", flush=True)

    stopping = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.append(True))
    new = again = refused = 0
    last = time.monotonic()
    while not stopping:
        message = consumer.poll(0.2)
        if message is None:
            if options.until_idle and time.monotonic() - last > options.until_idle:
                break
            continue
        if message.error():
            error = message.error()
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                print(f"kafka: {error.str()}", file=sys.stderr)
            continue
        last = time.monotonic()
        topic, body = message.topic(), message.value() or b""
        headers = {name: value or b"" for name, value in message.headers() or []}
        if options.key and not is_signed(options.key, headers, body):
            refused += 1
            print(f"{topic:<21} a message that the relay did not sign is left alone")
        else:
            try:
                event = json.loads(body)
                is_new = apply(store, topic, event)
                line = f"{event['aggregate_id']}  {event['event_type']:<25} {told(topic, event)}"
            except (ValueError, KeyError, TypeError, AttributeError, sqlite3.Error) as error:
                # Nothing that comes again would mend it. A consumer of your own keeps it for somebody to see.
                refused += 1
                print(f"{topic:<21} a message that keeps to no schema is left alone: {error!r}")
            else:
                new, again = new + is_new, again + (not is_new)
                note = "" if is_new else "  (again: nothing is done)"
                print(f"{topic:<21} {line}{note}", flush=True)
        consumer.commit(message)
    consumer.close()
    deals = store.execute("SELECT status, count(*), sum(escrow_nano) FROM deals GROUP BY status ORDER BY 2 DESC")
    print(f"{new} new, {again} again, {refused} left alone; the deals as these messages tell of them:")
    for status, count, escrow_nano in deals:
        print(f"  {status:<20} {count:>5}   {ton(escrow_nano)} in escrow")


if __name__ == "__main__":
    main()
