//! swarm
