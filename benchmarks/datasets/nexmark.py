"""Bids, auctions and persons of the Nexmark benchmark (github.com/nexmark/nexmark): 46 bids, 3 auctions, 1 person.

Bids are a data set, auctions and persons another, and bids and auctions a third, so that a query reads all rows of
its data set. As in its generator, half of the bids are for a hot auction, which changes every hundred auctions; other
bids are for one of the last hundred auctions. Three quarters of the bids are of a hot bidder.
"""

from typing import Final

from benchmarks.datasets.table import Table, event_time

BIDS, AUCTIONS, PERSONS = 46, 3, 1  #: of fifty events
US_PER_BID: Final = 200
US_PER_AUCTION: Final = US_PER_BID * BIDS // AUCTIONS  #: among bids
US_PER_SELLER: Final = 2_304  #: between two rows of auctions and persons, which are four in the time of 46 bids
MAX_OPEN_S: Final = 9  #: from the begin of an auction to its end
QUERIES: Final = ("q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8", "q11", "q17", "q18")
UPDATES: Final = ("q17", "q18")  #: queries whose output are updates
_FIRST_ID: Final = 1_000
_AUCTION: Final = f"{_FIRST_ID} + id * {AUCTIONS} // {BIDS}"  #: the newest auction at a bid
_PERSON: Final = f"{_FIRST_ID} + id // {BIDS}"
_SELLER: Final = f"{_FIRST_ID} + greatest(id // {AUCTIONS} - mixed(id, 4) % 20, 0)"
_CHANNELS: Final = "['Google', 'Facebook', 'Baidu', 'Apple'][1 + mixed(id, 5) % 4]"
_STATES: Final = "['AZ', 'CA', 'ID', 'OR', 'WA', 'WY'][1 + mixed(id, 2) % 6]"

BID_TABLES: Final = {
    "bids": Table(
        columns={
            "auction": (
                "bigint",
                f"if(mixed(id, 1) % 2 = 0, ({_AUCTION}) // 100 * 100, greatest({_AUCTION} - mixed(id, 2) % 100, 1000))",
            ),
            "bidder": (
                "bigint",
                f"if(mixed(id, 3) % 4 > 0, ({_PERSON}) // 100 * 100, greatest({_PERSON} - mixed(id, 4) % 999, 1000))",
            ),
            "price": ("bigint", "cast(power(10, mixed(id, 6) % 1000000 / 1000000.0 * 6) * 100 as bigint)"),
            "channel": ("string", _CHANNELS),
            "url": ("string", "'https://www.nexmark.com/' || mixed(id, 7) % 9973 || '/item.htm?query=1'"),
            "date_time": ("timestamp", event_time(US_PER_BID)),
            "extra": ("string", "md5('' || id)"),
        },
        has_late_rows=True,
    ),
}
SELLER_TABLES: Final = {
    "auctions": Table(
        columns={
            "id": ("bigint", f"{_FIRST_ID} + id"),
            "item_name": ("string", "'item-' || mixed(id, 1) % 5003"),
            "initial_bid": ("bigint", "100 + mixed(id, 2) % 10000"),
            "seller": ("bigint", _SELLER),
            "category": ("bigint", "10 + mixed(id, 3) % 5"),
            "date_time": ("timestamp", event_time(US_PER_SELLER * (AUCTIONS + PERSONS) // AUCTIONS)),
        },
        share=AUCTIONS / (AUCTIONS + PERSONS),
        has_late_rows=True,
    ),
    "persons": Table(
        columns={
            "id": ("bigint", f"{_FIRST_ID} + id"),
            "name": ("string", "'person ' || mixed(id, 1) % 9973"),
            "city": ("string", "'city-' || mixed(id, 3) % 10"),
            "state": ("string", _STATES),
            "date_time": ("timestamp", event_time(US_PER_SELLER * (AUCTIONS + PERSONS) // PERSONS)),
        },
        share=PERSONS / (AUCTIONS + PERSONS),
        has_late_rows=True,
    ),
}
#: Bids and their auctions, which are open for 1 to 9 s.
AUCTION_TABLES: Final = {
    "bids": BID_TABLES["bids"],
    "auctions": Table(
        columns={
            "id": ("bigint", f"{_FIRST_ID} + id"),
            "category": ("bigint", "10 + mixed(id, 3) % 5"),
            "date_time": ("timestamp", event_time(US_PER_AUCTION)),
            "expires": (
                "timestamp",
                f"{event_time(US_PER_AUCTION)} + to_seconds(1 + mixed(id, 5) % {MAX_OPEN_S})",
            ),
        },
        share=AUCTIONS / BIDS,
        has_late_rows=True,
    ),
}
