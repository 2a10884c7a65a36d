"""The version of Headrace, in this one place."""

VERSION = "0.1.0"
