"""How fast are the pages and the REST endpoints of the console, beside a long history?"""
