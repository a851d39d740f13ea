"""What runs on servers: one program that answers requests, and one small process for each job."""
