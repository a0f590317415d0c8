import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;

/** Prints what the JDBC driver of Arrow Flight SQL gets: a statement, a parameter, the tables, an error. */
public class FlightSqlClient {
    public static void main(String[] args) throws Exception {
        Class.forName("org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver");
        try (Connection connection = DriverManager.getConnection(args[0])) {
            try (ResultSet rows = connection.createStatement().executeQuery(
                    "SELECT k, secret, ts FROM seen WHERE k < 3 ORDER BY k")) {
                while (rows.next()) {
                    System.out.println("row " + rows.getLong(1) + " " + rows.getString(2));
                }
            }
            try (PreparedStatement statement = connection.prepareStatement("SELECT count(*) AS n FROM seen WHERE k >= 590");
                    ResultSet rows = statement.executeQuery()) {
                rows.next();
                System.out.println("count " + rows.getLong("n"));
            }
            try (ResultSet tables = connection.getMetaData().getTables(null, null, "%", null)) {
                while (tables.next()) {
                    System.out.println("table " + tables.getString("TABLE_NAME") + " " + tables.getString("TABLE_TYPE"));
                }
            }
            try {
                connection.createStatement().executeQuery("SELECT * FROM nothing_there");
            } catch (java.sql.SQLException error) {
                System.out.println("error " + error.getMessage().contains("nothing_there"));
            }
        }
    }
}
