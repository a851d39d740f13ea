"""The program that answers requests on a server, and the supervisor process of each job."""
