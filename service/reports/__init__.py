"""The report for people and for CI: one HTML page, Markdown, JUnit XML, CSV per layer. JSON stays the contract."""
