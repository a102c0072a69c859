"""The HTML pages. Requests that change something go through `console.operations`, as in the API."""
