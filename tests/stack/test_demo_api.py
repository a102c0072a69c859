"""What the demo reads over REST."""

import httpx

from stack.demo_api import Api


def test_a_list_is_read_page_by_page() -> None:
    """The address of the next page has a query of its own."""

    def answer(request: httpx.Request) -> httpx.Response:
        page = int(request.url.params.get("page", "1"))
        following = f"{request.url.copy_with(query=None)}?page={page + 1}" if page < 3 else None
        return httpx.Response(200, json={"results": [{"page": page}], "next": following})

    client = httpx.Client(base_url="http://console/api/v1/", transport=httpx.MockTransport(answer))
    assert Api(client).all("jobs/1/checkpoints/") == [{"page": 1}, {"page": 2}, {"page": 3}]
