"""NATS on the wire: a client for the data path. It knows nothing of jobs.

`Options` say where to connect and as whom, `Connection` publishes, subscribes and asks,
`JetStream` stores and reads on top of it. `parser` and `headers` are pure.
"""
