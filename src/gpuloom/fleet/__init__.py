"""Nodes that join a head over the network.

| file | holds |
|---|---|
| `lease` | how long a node may go on by itself, and when its jobs may be given to others |
| `token`, `certificates` | who may join, and how a node knows its head |
| `codec`, `messages`, `questions` | what they say to each other |
| `stream`, `channel` | one end of the link: each message once and in order, over any number of connections |
| `joined` | a node that joined, as a `NodePort` |
| `remembered` | what a head must know of its nodes after a restart |
| `registry` | the head's nodes: who comes, is cut off, is lost, leaves |

May import: core, executors, agent.
"""
