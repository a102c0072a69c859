"""The data of the Yahoo streaming benchmark (github.com/yahoo/streaming-benchmarks): ad events, and ads of campaigns.

As there, 100 campaigns have ten ads each, and all ids are uuids as text. A third of the events are views.
"""

from typing import Final

from benchmarks.datasets.table import Table, event_time

US_PER_ROW: Final = 200
ADS: Final = 1_000
_ADS_PER_CAMPAIGN: Final = 10

TABLES: Final = {
    "events": Table(
        columns={
            "user_id": ("string", "uuid_text('user', mixed(id, 1) % 100003)"),
            "page_id": ("string", "uuid_text('page', mixed(id, 2) % 10007)"),
            "ad_id": ("string", f"uuid_text('ad', mixed(id, 3) % {ADS})"),
            "ad_type": ("string", "['banner', 'modal', 'sponsored-search', 'mail', 'mobile'][1 + mixed(id, 4) % 5]"),
            "event_type": ("string", "['view', 'click', 'purchase'][1 + mixed(id, 5) % 3]"),
            "event_time": ("timestamp", event_time(US_PER_ROW)),
            "ip_address": ("string", "'1.2.3.4'"),
        },
        has_late_rows=True,
    ),
    "campaigns": Table(
        columns={
            "ad_id": ("string", "uuid_text('ad', id)"),
            "campaign_id": ("string", f"uuid_text('campaign', id // {_ADS_PER_CAMPAIGN})"),
        },
        rows=ADS,
    ),
}
